"""The `mptui` command: its subcommands and the reporting of errors.

Importing this module doesn't import the schema, torch or Textual: each command imports what it needs.
"""

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mptui import __version__
from mptui.cli.completion import join_assignments
from mptui.cli.help import HeadedCommand, HeadedGroup
from mptui.cli.look import data, detect, doctor, learn, monitor, profiles
from mptui.cli.measure import bench, check_amp, memory, parity, tune
from mptui.cli.options import command
from mptui.cli.train import attach, prepare, resume, run, runs, slurm, stop, sync
from mptui.cli.use import evaluate, export, predict, report, sample
from mptui.errors import ConfigError, DiskError, MptuiError
from mptui.io.streams import OutputError, drop_unwritten, standard_streams
from mptui.registry.own_code import fault_of
from mptui.text import clean

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_BUG = "report this bug of mptui, with the traceback on stderr"

# typer imports pydantic, 0.1 s, to convert its own flag if that is not given; False avoids this
_NO_HELP = {"help": False}
_NO_COMPLETION = {"install_completion": False, "show_completion": False}
_DEFAULTS = {**_NO_HELP, **_NO_COMPLETION, "profiles": {**_NO_HELP, "list": _NO_HELP}}

app = typer.Typer(
    name="mptui",
    cls=HeadedGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "default_map": _DEFAULTS},
)


@app.callback(invoke_without_command=True)
def mptui(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Train each run of the terminal UI in its own process.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Let your own MODULE:NAME run in runs of the terminal UI.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Add tracebacks to errors; accepted after any command.")
    ] = False,
) -> int:
    """The cockpit of a mixed-precision training run. Without a command: the terminal UI."""
    if version:
        typer.echo(f"mptui {__version__}")
        raise typer.Exit
    return _open_tui(isolate, trust_code) if ctx.invoked_subcommand is None else 0


def add_commands(
    heading: str,
    *commands: Callable[..., int | None],
    **settings: Any,  # noqa: ANN401 - typer's own
) -> None:
    """Add commands, in the help under a heading; their options are those of their `Options`."""
    for each in commands:
        app.command(cls=HeadedCommand, rich_help_panel=heading, **settings)(command(each))


_ANY_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
_FIRST, _TRAIN, _LOOK, _MEASURE, _USE = "First", "Train", "Look", "Measure", "Use"

add_commands(_FIRST, detect.detect, run.run, attach.attach, stop.stop, resume.resume)
app.add_typer(runs.runs, rich_help_panel=_FIRST)
add_commands(
    _TRAIN,
    slurm.slurm,
    context_settings=_ANY_FLAGS,
    options_metavar="[OPTIONS] [FLAGS OF mptui run]",
)
add_commands(_TRAIN, prepare.prepare, sync.sync)
add_commands(_LOOK, doctor.doctor, data.data, monitor.monitor, learn.learn)
app.add_typer(profiles.profiles, rich_help_panel=_LOOK)
add_commands(_MEASURE, bench.bench, tune.tune, check_amp.check_amp, parity.parity, memory.memory)
add_commands(_USE, evaluate.evaluate, predict.predict, sample.sample, export.export, report.report)


# Words of earlier versions
# -------------------------


@app.command(hidden=True, add_help_option=False, context_settings=_ANY_FLAGS)
def simulate(ctx: typer.Context) -> int:
    """Do what takes the place of this command, and say so."""
    typer.echo("mptui simulate is now: mptui memory --ranks N,…", err=True)
    instead = ["memory", "--ranks", "8,16,64,256,1024", *ctx.args]
    code: int = app(instead, prog_name="mptui", standalone_mode=False)
    return code


@app.command(hidden=True, add_help_option=False, context_settings=_ANY_FLAGS)
def selftest() -> NoReturn:
    """Refuse a command of earlier versions, whatever its options."""
    raise ConfigError(
        "selftest is no longer a command",
        hint="kill runs in a folder, from a clone: pytest -m slow tests/chaos/test_kill.py --basetemp DIR",
    )


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    arguments = sys.argv[1:]
    join_assignments(os.environ)
    warnings.formatwarning = _warning_line
    with standard_streams():
        code = _exit_code([a for a in arguments if a != "--debug"], debug="--debug" in arguments)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # one that comes as late as this must not change the exit code
    gc.freeze()  # or Python searches what torch brought for cycles before it ends, which takes 1.6 s
    sys.exit(code)


def _warning_line(message: object, category: type[Warning], *_place: object, **_line: object) -> str:
    """Return a warning of a library as one line, without lines of its source."""
    return f"mptui: {category.__name__}: {clean(str(message), 300)}\n"


def _exit_code(arguments: list[str], debug: bool) -> int:
    report = partial(_report_error, debug=debug, as_json="--json" in arguments)
    try:
        _check_folder()
        code = app(arguments, prog_name="mptui", standalone_mode=False)
        sys.stdout.flush()
    except MptuiError as error:
        return report(error)
    except typer.TyperException as error:
        return report(ConfigError(error.format_message(), hint=_usage_hint(error)))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        drop_unwritten(sys.stdout)
        return _BROKEN_PIPE
    except SystemExit as end:  # click ends the program with 1 where a reader has gone
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        drop_unwritten(sys.stdout)
        return _BROKEN_PIPE
    except OutputError as error:
        drop_unwritten(sys.stdout)
        from mptui.io.written_files import disk_hint

        hint = disk_hint(error, Path("/dev/stdout"), "redirect the output")
        return _report_error(DiskError(f"standard output: {error.strerror}", hint=hint), debug=debug)
    except Exception as error:
        fault = fault_of(error) or _of_memory(error)
        if fault is None:
            if "--json" in arguments:
                _print_document(MptuiError(f"{type(error).__name__}: {error}", hint=_BUG))
            raise
        return report(fault)
    return code or 0


def _of_memory(error: Exception) -> MptuiError | None:
    """Convert an error of full memory; None for others, and where torch is not loaded."""
    if "torch" not in sys.modules:
        return None
    from mptui.runs.session.ending import out_of_memory

    return out_of_memory(error)


def _check_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib takes time to load
    except OSError as error:
        raise ConfigError(
            f"the current folder can't be used: {error.strerror}",
            hint="it was deleted or moved; cd to another folder",
        ) from None


def _open_tui(isolate: bool, trust_code: bool) -> int:
    from mptui.tui.terminal.process import Part, check_terminal, guarded

    check_terminal()
    if isolate:
        from mptui.processes.start import check_detach

        check_detach()

    def cockpit(part: Part) -> int:
        from mptui.tui.cockpit import open_cockpit

        return open_cockpit(part, isolate=isolate, trust_code=trust_code)

    return guarded(cockpit)


def _report_error(error: MptuiError, *, debug: bool, as_json: bool = False) -> int:
    """Print an error on stderr, and with --json its document on stdout; return the exit code."""
    if debug:
        traceback.print_exc()
    print(f"mptui: {error.message}\n  {error.hint}", file=sys.stderr)  # noqa: T201 - also without rich
    if as_json:
        _print_document(error)
    return error.exit_code


def _print_document(error: MptuiError) -> None:
    """Print the document of an error on stdout; one that can't be written changes no exit code."""
    from mptui.cli.output import print_json

    told = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
    try:
        print_json({**error.document, **told})
        sys.stdout.flush()
    except OSError:
        drop_unwritten(sys.stdout)


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'mptui'} --help`"
