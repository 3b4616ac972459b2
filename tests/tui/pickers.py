"""User actions in the picker, and memory as it was counted."""

from dataclasses import fields

import numpy as np

from mptui.engine.memory.ledger import Footprint, rows_of
from mptui.engine.memory.tape import StepMemory

RESNET18 = {
    "parameters": 11_181_642,
    "weights": 44_803_688,
    "gradients": 44_726_568,
    "gradients_at_peak": 9_461_800,
    "optimizer": 44_726_568,
    "working": 11_141_120,
    "workspace": 102_760_448,
    "context": 671_088_640,
}
"""Bytes of a ResNet-18 with 10 classes and SGD, for images of 224 px in bf16, as they were counted."""


def footprint_of(rows, per_sample, **parts):
    """Return the memory of a run whose activations alone grow with the batch, by `per_sample` bytes."""
    names = {field.name for field in fields(Footprint)} - {"step", "by_module"}
    grows = {"batch_size": rows, "activations": per_sample * rows, "per_sample": per_sample}
    one = np.array([0]), np.array([per_sample])
    step = StepMemory(*one, uses=["activations"], modules=[""], events=np.array([0]))
    return Footprint(**dict.fromkeys(names, 0) | parts | grows, step=step, by_module={})


def resnet18_footprint(config):
    """Return what was counted of a ResNet-18, with the batch of `config`."""
    return footprint_of(rows_of(config), 14_701_596, **RESNET18)


async def go_to(pilot, screen, key):
    """Move the cursor of the values to `key`."""
    values = screen.query_one("#values")
    if key not in [option.id for option in values.options]:
        screen.action_all()
    values.focus()
    values.highlighted = [option.id for option in values.options].index(key)
    await pilot.pause()


async def write(pilot, text):
    """Replace the text of the focused input."""
    pilot.app.focused.value = text
    await pilot.pause()


async def edit(pilot, screen, key, text):
    """Change a setting by its dialog."""
    await go_to(pilot, screen, key)
    await pilot.press("e")
    await pilot.pause()
    await write(pilot, text)
    await pilot.press("enter")
    await pilot.pause()
