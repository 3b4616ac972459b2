"""Shell completion of the values of --profile, --model and RUN, without importing torch.

The shell completes other values as files or folders.
"""

from pathlib import Path

import typer


def profiles(incomplete: str) -> list[str]:
    """Return the names of profiles that start with `incomplete`."""
    from mptui.config.profiles import list_profiles

    return [info.name for info in list_profiles() if info.name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the names of networks that start with `incomplete`."""
    from mptui.registry.models import model_names

    return sorted(model_names(incomplete))


def weights(incomplete: str) -> list[str]:
    """Return the word that --weights takes, if it starts with `incomplete`."""
    return ["pretrained"] if "pretrained".startswith(incomplete) else []


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs in --runs-dir or MPTUI_RUNS_DIR that start with `incomplete`."""
    from mptui.runs.store.directory import list_runs

    folder = Path(ctx.params.get("runs_dir") or "runs")
    return [run.name for run in list_runs(folder) if run.name.startswith(incomplete)]
