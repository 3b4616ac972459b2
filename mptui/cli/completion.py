"""What the shell completes: the values of --profile, --model and RUN. Nothing here imports torch.

A value that is none of these is completed by the shell itself, as a file or a folder.
"""

from pathlib import Path

import typer


def profiles(incomplete: str) -> list[str]:
    """The names of profiles that begin so."""
    from mptui.config.profiles import list_profiles

    return [info.name for info in list_profiles() if info.name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """The names of networks that begin so."""
    from mptui.registry.models import MODELS

    return [name for name in sorted(MODELS) if name.startswith(incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of runs that begin so, in the folder that --runs-dir or MPTUI_RUNS_DIR says."""
    from mptui.runs.store.directory import list_runs

    folder = Path(ctx.params.get("runs_dir") or "runs")
    return [run.name for run in list_runs(folder) if run.name.startswith(incomplete)]
