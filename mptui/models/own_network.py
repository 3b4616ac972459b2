"""A network of the person's own."""

from torch import nn

from mptui.errors import ConfigError
from mptui.registry import own_code


def build_own(name: str, num_classes: int) -> nn.Module:
    """Build the network that `name` makes.

    Args:
        name: `package.module:function`: called as `function(num_classes=...)`; a class of networks is one.
        num_classes: Number of classes.

    Raises:
        ConfigError: There is no such function, or it returns something else.
        Exception: Whatever the person's code raises.
    """
    make = own_code.load(name)
    if not callable(make):
        raise ConfigError(f"{name} is no function", hint="write one: def make(num_classes): return NETWORK")
    model = own_code.call(name, make, num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{name} returned {type(model).__name__}, not a network",
            hint="return a torch.nn.Module",
        )
    return model
