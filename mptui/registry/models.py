"""The networks by name, as `model.name` has them. torch and torchvision are imported when one is built."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from mptui.errors import ConfigError
from mptui.registry.names import PREFIX, architecture, timm_names
from mptui.registry.own_code import is_own
from mptui.registry.tasks import (
    CLASSIFICATION,
    DEFAULT_TASK,
    DIFFUSION,
    RECONSTRUCTION,
    SEGMENTATION,
    TASKS,
    ByDevice,
)

if TYPE_CHECKING:
    from torch import nn

    from mptui.models.classifiers import Pretrained
    from mptui.models.unet import Norm, Up

PRETRAINED = "pretrained"
"""Value of `model.weights` for the published weights of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A network.

    Attributes:
        task: What it learns: a key of `mptui.registry.tasks.TASKS`; None: what the data is for.
        build: Called as `build(num_classes=..., side=..., **settings)` for images of `side` pixels. Returns
            the network with random weights.
        pretrained: Called as `pretrained(**settings)`. Returns its published weights, or None without any.
        settings: The keys of [model] that `build` takes. With `depth`, and without an `encoder`, images must
            be large enough to be halved that often.
        smallest_side: The smallest height and width of images in pixels.
        side_multiple: What the height and width must be a multiple of.
        whole_levels: With `depth`: each halving must leave a whole number of pixels.
        defaults: Defaults of the keys of [model], where they are not those of the schema.
        training: The same of other tables: table.key -> default. Of a network that SGD hardly trains.
    """

    task: str | None
    build: "Callable[..., nn.Module]"
    pretrained: "Callable[..., Pretrained | None]" = lambda **settings: None
    settings: tuple[str, ...] = ()
    smallest_side: int = 1
    side_multiple: int = 1
    whole_levels: bool = False
    defaults: Mapping[str, ByDevice[int]] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def _unet(
    *, num_classes: int, side: int, encoder: str | None, width: int, depth: int, up: "Up", norm: "Norm"
) -> "nn.Module":
    if encoder is not None:
        from mptui.models.classifiers import build_encoder_unet

        return build_encoder_unet(encoder, num_classes, side, width=width, up=up, norm=norm)
    from mptui.models.unet import UNet

    return UNet(num_classes, width=width, depth=depth, up=up, norm=norm)


def _pretrained_encoder(*, encoder: str | None, **settings: object) -> "Pretrained | None":
    if encoder is None:
        return None
    from mptui.models.classifiers import pretrained_timm

    return pretrained_timm(encoder, part="encoder")


def _diffusion_unet(
    *,
    num_classes: int,
    side: int,
    width: int,
    depth: int,
    attention: list[int] | None,
    class_conditional: bool,
    vae: str | None = None,
) -> "nn.Module":
    from mptui.models.diffusion_unet import DiffusionUNet
    from mptui.models.vae import latent_shape

    channels, side, _ = (3, side, side) if vae is None else latent_shape(vae, side)
    return DiffusionUNet(
        in_channels=channels,
        width=width,
        depth=depth,
        attention=attention and [level for level in range(depth + 1) if side >> level in attention],
        classes=num_classes if class_conditional else 0,
    )


def _vae(*, num_classes: int, side: int, width: int, depth: int) -> "nn.Module":
    from mptui.models.vae import Autoencoder
    from mptui.models.vae_layout import VaeLayout

    return Autoencoder(VaeLayout.of_width(width, depth))


def _classifier(name: str, *, num_classes: int, side: int) -> "nn.Module":
    from mptui.models.classifiers import build_classifier

    return build_classifier(name, num_classes, side)


def _pretrained_classifier(name: str) -> "Pretrained":
    from mptui.models.classifiers import pretrained_classifier

    return pretrained_classifier(name)


def _timm(name: str, *, num_classes: int, side: int) -> "nn.Module":
    from mptui.models.classifiers import build_timm

    return build_timm(name, num_classes, side)


def _pretrained_timm(name: str) -> "Pretrained | None":
    from mptui.models.classifiers import pretrained_timm

    return pretrained_timm(name)


def _timm_spec(name: str) -> ModelSpec:
    """Return the spec of a network of timm; which images it takes is tried when it is built."""
    return ModelSpec(
        task=CLASSIFICATION,
        build=partial(_timm, name),
        pretrained=partial(_pretrained_timm, name),
        training=_training_of(name),
    )


def _own(name: str, *, num_classes: int, side: int) -> "nn.Module":
    from mptui.models.classifiers import build_own

    return build_own(name, num_classes)


_ADAMW: dict[str, Any] = {
    "training.optimizer": "adamw",
    "training.lr": 1e-3,
    "training.lr_batch_size": 1024,
    "training.lr_scaling": "sqrt",
    "training.weight_decay": 0.05,
    "training.warmup_epochs": 1.0,
    "training.clip_grad_norm": 1.0,
}
"""How transformers are trained: as Swin (Liu et al. 2021); ConvNeXt (Liu et al. 2022) has 4e-3 for 4,096."""
_ATTENDS = re.compile(
    r".*(vit|former|swin|convnext)|(deit|beit|eva|cait|xcit|coat|pit|tnt|twins|pvt|volo|hiera|mixer|edgenext)"
)
"""The names of networks of transformers and of ConvNeXts."""


def _training_of(name: str) -> Mapping[str, Any]:
    return _ADAMW if _ATTENDS.match(architecture(name).removeprefix(PREFIX)) else {}


_CLASSIFIERS = (
    # the start of torchvision's names and their ends; the smallest side and what sides are a multiple of
    ("resnet", "18 34 50 101 152", 1, 1),
    ("wide_resnet", "50_2 101_2", 1, 1),
    ("resnext", "50_32x4d 101_32x8d 101_64x4d", 1, 1),
    ("regnet_x_", "400mf 800mf 1_6gf 3_2gf 8gf 16gf 32gf", 1, 1),
    ("regnet_y_", "400mf 800mf 1_6gf 3_2gf 8gf 16gf 32gf 128gf", 1, 1),
    ("vit_", "b_16 l_16", 16, 16),  # multiples of the patches
    ("vit_", "b_32 l_32", 32, 32),
    ("vit_", "h_14", 14, 14),
    ("convnext_", "tiny small base large", 32, 1),
    ("efficientnet_", "b0 b1 b2 b3 b4 b5 b6 b7", 1, 1),
    ("efficientnet_v2_", "s m l", 33, 1),
    ("mobilenet_", "v3_large v3_small v2", 1, 1),
    ("swin_", "t s b v2_t v2_s v2_b", 1, 1),  # pads to any size
    ("densenet", "121 161 169 201", 29, 1),
    ("vgg", "11 11_bn 13 13_bn 16 16_bn 19 19_bn", 32, 1),
    ("maxvit_", "t", 224, 224),  # five halvings, and windows of 7 at each level
    ("mnasnet", "0_5 0_75 1_0 1_3", 1, 1),
    ("shufflenet_v2_", "x0_5 x1_0 x1_5 x2_0", 1, 1),
    ("squeezenet", "1_0", 21, 1),
    ("squeezenet", "1_1", 17, 1),
    ("alexnet", "", 63, 1),
    ("googlenet", "", 15, 1),
    ("inception", "_v3", 75, 1),
)


def _classifiers() -> dict[str, ModelSpec]:
    return {
        start + end: ModelSpec(
            task=CLASSIFICATION,
            build=partial(_classifier, start + end),
            pretrained=partial(_pretrained_classifier, start + end),
            smallest_side=smallest,
            side_multiple=multiple,
            training=_training_of(start),
        )
        for start, ends, smallest, multiple in _CLASSIFIERS
        for end in ends.split(" ")
    }


MODELS: dict[str, ModelSpec] = {
    **_classifiers(),
    "unet": ModelSpec(
        task=SEGMENTATION,
        build=_unet,
        pretrained=_pretrained_encoder,
        settings=("encoder", "width", "depth", "up", "norm"),
    ),
    "diffusion_unet": ModelSpec(
        task=DIFFUSION,
        build=_diffusion_unet,
        settings=("width", "depth", "attention", "class_conditional"),
        whole_levels=True,
        # wide where there is an accelerator, and on a CPU what a CPU can train
        defaults={"width": ByDevice(128, cpu=32), "depth": ByDevice(3, cpu=3)},
    ),
    "latent_diffusion": ModelSpec(
        task=DIFFUSION,
        build=_diffusion_unet,
        settings=("width", "depth", "attention", "class_conditional", "vae"),
        whole_levels=True,
        defaults={"width": ByDevice(128, cpu=32), "depth": ByDevice(2, cpu=2)},
    ),
    "vae": ModelSpec(
        task=RECONSTRUCTION,
        build=_vae,
        settings=("width", "depth"),
        whole_levels=True,
        defaults={"width": ByDevice(64, cpu=16), "depth": ByDevice(3, cpu=2)},
    ),
}
"""Name -> network. Of those that begin as a person types, the first is suggested."""


def example_models() -> list[str]:
    """The default network of each task."""
    return [spec.network.accelerator for spec in TASKS.values()]


def find_model(name: str | None) -> ModelSpec | None:
    """The network called `name`, as `model.name` has it; None if there is none.

    Those of timm may have the name of weights: `timm/resnet50.a1_in1k`. One of the person's own
    (`package.module:function`) is imported when it is built.
    """
    if is_own(name):
        return ModelSpec(task=None, build=partial(_own, str(name)))
    if name is not None and name.startswith(PREFIX):
        return _timm_spec(name) if architecture(name) in timm_names() else None
    return MODELS.get(str(name))


def known_model(name: str | None, key: str = "model.name") -> tuple[str, ModelSpec]:
    """Return a network with its name, as the setting `key` has it.

    Raises:
        ConfigError: There is no such network.
    """
    if name is None:
        raise ConfigError(
            "model.name is not set",
            hint=f"name a network, e.g. --model {' or --model '.join(example_models())}",
        )
    spec = find_model(name)
    if spec is None:
        if name.startswith(PREFIX) and not timm_names():
            raise ConfigError(
                f"{key}: {name} needs timm, which is not installed",
                hint="install it: pip install 'mptui[timm]'",
            )
        near = get_close_matches(name.lower(), [*MODELS, *timm_names()], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"try {' or '.join(example_models())}"
        raise ConfigError(f"{key}: no network called {name!r}", hint=hint)
    return name, spec


def model_names(start: str) -> list[str]:
    """The names of networks that begin with `start`; timm's only where something is typed."""
    names = [name for name in MODELS if name.startswith(start)]
    may_be_timm = start.startswith(PREFIX) or PREFIX.startswith(start)
    if start and may_be_timm:
        names += [name for name in timm_names() if name.startswith(start)]
    return names


def task_of_model(name: str) -> str | None:
    """The task of a network; None: what the data is for. Of a name that is unknown, the default."""
    spec = find_model(name)
    return DEFAULT_TASK if spec is None else spec.task
