"""What the rooms have to know of a precision beside its name."""

SIXTEEN_BIT = {"fp16": "float16", "bf16": "bfloat16"}
"""The precisions that compute in 16 bits under autocast, by torch's name of the format."""

PRECISIONS = ("fp32", *SIXTEEN_BIT)
"""All of them."""

LOSS_SCALED = frozenset({"fp16"})
"""Those whose range is so much narrower than float32's that the loss is scaled."""

LONG_NAMES = {**{name: mode for mode, name in SIXTEEN_BIT.items()}, "float32": "fp32"}
"""Torch's names of the formats, which settings accept."""
