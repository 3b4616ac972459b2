"""`mptui profiles`: list, show, check and copy profiles, and explain their keys."""

import os
import shutil
import textwrap
from pathlib import Path

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.help import HeadedCommand
from mptui.cli.output import print_json, print_next
from mptui.errors import ConfigError
from mptui.text import clean, shell_word

_WIDEST = 110


class ProfileOptions(o.Options):
    """A profile."""

    name: str = o.argument(
        "NAME|FILE",
        "Name of a profile, or a file of yours.",
        show_default=False,
        autocompletion=completion.profiles,
    )


class KeysOptions(o.Options):
    """The settings to explain."""

    word: str = o.argument(
        "WORD", "A word of the name or the help of a setting; without, all.", default="", show_default=False
    )


class CopyOptions(o.Options):
    """A profile that is copied."""

    name: str = o.argument("NAME", "Name of the copy.", show_default=False)
    origin: str = o.required_option(
        "NAME|FILE", "The profile to copy.", "--from", show_default=False, autocompletion=completion.profiles
    )


profiles = typer.Typer(name="profiles", rich_markup_mode=None)


@profiles.callback(invoke_without_command=True)
def without_command(ctx: typer.Context) -> None:
    """List, show, check and copy profiles; explain their keys."""
    if ctx.invoked_subcommand is None:
        _print_list(as_json=False)


@profiles.command("list", cls=HeadedCommand)
@o.command
def list_all(output: o.Output) -> None:
    """List the profiles, in the order of their digits on the screens."""
    _print_list(as_json=output.as_json)


def _print_list(*, as_json: bool) -> None:
    from mptui.config.profiles import list_profiles

    found = list_profiles()
    if as_json:
        rows = [
            {"name": p.name, "description": p.description, "path": str(p.path), "origin": p.origin}
            for p in found
        ]
        print_json({"profiles": rows})
    else:
        name_width = max((len(clean(p.name)) for p in found), default=0)
        origin_width = max((len(p.origin) for p in found), default=0)
        for p in found:
            typer.echo(f"{clean(p.name):<{name_width}}  {p.origin:<{origin_width}}  {p.description}")
    print_next("mptui profiles show NAME, or mptui run --profile NAME")


@profiles.command(cls=HeadedCommand)
@o.command
def show(options: ProfileOptions) -> None:
    """Print the file of a profile."""
    from mptui.config.documents import read_document
    from mptui.config.profiles import find_profile

    text = read_document(find_profile(options.name)).text
    for line in text.splitlines():
        typer.echo(clean(line.expandtabs(4), limit=len(text) * 8))
    name = shell_word(options.name)
    print_next(f"mptui run --profile {name} --dry-run, or mptui profiles new NAME --from {name}")


@profiles.command(cls=HeadedCommand)
@o.command
def validate(options: ProfileOptions) -> None:
    """Check a profile: print ok, or all its faults."""
    from mptui.config.resolve import check_profile

    check_profile(options.name, os.environ)
    typer.echo("ok")
    print_next(f"mptui run --profile {shell_word(options.name)}")


@profiles.command(cls=HeadedCommand)
@o.command
def keys(options: KeysOptions, output: o.Output) -> None:
    """Explain the keys of a profile: meaning, values, default, where they act, when they change."""
    from mptui.config.explain import document, find_settings, lines, replacement

    found = find_settings(options.word)
    instead = replacement(options.word)
    if not found and not instead:
        raise ConfigError(
            f"{clean(options.word, 100)}: in the name and the help of no setting",
            hint="list all: mptui profiles keys",
        )
    documents = [document(key) for key in found]
    if output.as_json:
        print_json({"keys": documents, "retired": instead or None})
        return
    if instead:
        typer.echo(f"{options.word} is a setting of earlier versions: {instead}")
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for about in documents:
        typer.echo(f"{about['key']}")
        for line in textwrap.wrap(about["help"], width, initial_indent="  ", subsequent_indent="  "):
            typer.echo(line)
        for name, text in lines(about):
            typer.echo(f"  {name:<10}{text}")
    if found:
        print_next(f"set one: mptui run --set {found[0]}=VALUE, or in a profile: mptui profiles new NAME")


@profiles.command(cls=HeadedCommand)
@o.command
def new(options: CopyOptions) -> None:
    """Copy a profile to edit, and print its path."""
    from mptui.config.resolve import copy_profile

    path: Path = copy_profile(options.name, options.origin)
    typer.echo(clean(str(path), limit=4096))
    name = shell_word(options.name)
    print_next(f"edit it, then mptui profiles validate {name} and mptui run --profile {name}")
