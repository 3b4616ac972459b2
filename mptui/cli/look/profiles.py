"""`mptui profiles`: list, show, check and copy profiles."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import print_json, print_next
from mptui.text import clean

_NameOrFile = Annotated[
    str, typer.Argument(metavar="NAME|FILE", show_default=False, autocompletion=completion.profiles)
]

profiles = typer.Typer(rich_markup_mode=None)


def app_command(app: typer.Typer) -> None:
    """Add `profiles` to the commands of `app`."""
    app.add_typer(profiles, name="profiles")


@profiles.callback(invoke_without_command=True)
def without_command(ctx: typer.Context) -> None:
    """List, show, check and copy profiles."""
    if ctx.invoked_subcommand is None:
        list_all()


@profiles.command("list")
def list_all(as_json: o.Json = False) -> None:
    """List the profiles, in the order of their digits on the screens."""
    from mptui.config.profiles import list_profiles

    found = list_profiles()
    if as_json:
        print_json(
            [
                {"name": p.name, "description": p.description, "path": str(p.path), "origin": p.origin}
                for p in found
            ]
        )
    else:
        name_width = max((len(clean(p.name)) for p in found), default=0)
        origin_width = max((len(p.origin) for p in found), default=0)
        for p in found:
            typer.echo(f"{clean(p.name):<{name_width}}  {p.origin:<{origin_width}}  {p.description}")
    print_next("mptui profiles show NAME, or mptui run --profile NAME")


@profiles.command()
def show(name: _NameOrFile) -> None:
    """Print the file of a profile."""
    from mptui.config.documents import read_document
    from mptui.config.profiles import find_profile

    text = read_document(find_profile(name)).text
    for line in text.splitlines():
        typer.echo(clean(line.expandtabs(4), limit=len(text) * 8))
    print_next(f"mptui run --profile {name} --dry-run, or mptui profiles new NAME --from {name}")


@profiles.command()
def validate(name: _NameOrFile) -> None:
    """Check a profile: print ok, or all its faults."""
    from mptui.config.resolve import check_profile

    check_profile(name, os.environ)
    typer.echo("ok")
    print_next(f"mptui run --profile {name}")


@profiles.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NAME|FILE",
            help="The profile to copy.",
            show_default=False,
            autocompletion=completion.profiles,
        ),
    ],
) -> None:
    """Copy a profile to edit, and print its path."""
    from mptui.config.resolve import copy_profile

    path: Path = copy_profile(name, origin)
    typer.echo(clean(str(path), limit=4096))
    print_next(f"edit it, then mptui profiles validate {name} and mptui run --profile {name}")
