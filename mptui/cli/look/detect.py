"""`mptui detect`: the devices of this machine, their capabilities and recommended settings."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import console, print_json, print_next

if TYPE_CHECKING:
    from mptui.hardware.devices import Machine


class DetectOptions(o.Output):
    """What is asked and printed."""

    with_torch: bool = o.option(True, "", "Also query torch (takes seconds).", "--torch/--no-torch")


def detect(options: DetectOptions) -> None:
    """Show the devices, their capabilities and recommended settings."""
    from mptui.hardware.devices import find_machine

    machine = find_machine(options.with_torch)
    if options.as_json:
        print_json(_document(machine))
    else:
        _show(machine)
    print_next(_next_command(machine))


def _document(machine: "Machine") -> dict[str, Any]:
    from mptui.hardware.advice import recommend
    from mptui.hardware.devices import default_device, default_reason, why_no_default

    cpus = machine.host.cpus_usable
    no_default = why_no_default(machine)
    default = default_device(machine.devices)
    return {
        **asdict(machine),
        "devices": [
            {"device": device.torch_name, **asdict(device), "recommendation": asdict(recommend(device, cpus))}
            for device in machine.devices
        ],
        "selected": default.torch_name if default and no_default is None else None,
        "selected_reason": no_default or default_reason(machine.devices),
    }


def _show(machine: "Machine") -> None:
    from rich.panel import Panel
    from rich.text import Text

    from mptui.hardware.advice import recommend
    from mptui.hardware.describe import device_lines, device_title, torch_line
    from mptui.hardware.devices import default_reason

    out = console()
    for device in machine.devices:
        title = device_title(device)
        lines = device_lines(device, recommend(device, machine.host.cpus_usable), machine)
        if out.is_terminal:
            out.print(Panel(Text("\n".join(lines)), title=Text(title), title_align="left"))
        else:
            typer.echo("\n".join([title, *(f"  {line}" for line in lines)]))
    for sentence in (torch_line(machine), *machine.notes, default_reason(machine.devices)):
        if sentence:
            typer.echo(sentence)


def _next_command(machine: "Machine") -> str:
    from mptui.hardware.advice import recommend
    from mptui.hardware.devices import default_device, why_no_default

    default = None if why_no_default(machine) else default_device(machine.devices)
    advice = recommend(default or machine.devices[-1], machine.host.cpus_usable)
    least, _ = advice.batch_range or (0, 0)
    few = advice.batch_size is not None and advice.batch_size < least
    where = "" if default else " --device cpu"
    return f"mptui run --profile {advice.profile}{where}" + (f" --batch-size {least}" if few else "")
