"""The layers of any network, in order from its input."""

from collections import Counter

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer, first layer first.

    A layer is a block, such as a residual or a transformer block: the outermost module of a class that the
    network has more than once. Other modules are opened, so that each convolution or linear layer outside of
    blocks is a layer, too. Norms, biases, tokens and position embeddings outside of blocks belong to the
    layer before them, and before the first matrix to the first layer: as in BEiT (Bao et al. 2022).

    The order is that in which the modules were registered.
    """
    kinds = Counter(type(module) for module in model.modules())
    layers: list[list[nn.Parameter]] = [[]]
    seen: set[nn.Parameter] = set()
    begun = False

    def add(parameters: list[nn.Parameter]) -> None:
        layers[-1].extend(p for p in parameters if p not in seen)
        seen.update(parameters)

    def visit(module: nn.Module) -> None:
        nonlocal begun
        is_block = kinds[type(module)] > 1 and type(module) not in _CONTAINERS
        if not is_block and any(module.children()):
            add(list(module.parameters(recurse=False)))
            for child in module.children():
                visit(child)
            return
        parameters = list(module.parameters())
        if any(parameter.ndim >= 2 for parameter in parameters):
            if begun:
                layers.append([])
            begun = True
        add(parameters)

    visit(model)
    return [layer for layer in layers if layer]
