"""The last line of a run in the shell: directory, best result, next command."""

from pathlib import Path
from typing import Any

from mptui.text import clean, shell_word


def closing_line(run: Path, summary: dict[str, Any]) -> str:
    """Describe the end of a run in one line, with the next command.

    Args:
        run: The run directory.
        summary: The summary from `mptui.runs.store.directory.status_of`.
    """
    status, steps = str(summary["status"]), summary.get("optimizer_steps")
    after = f" after step {steps:,}" if isinstance(steps, int) else ""
    best = summary.get("best") or {}
    value = best.get("value")
    best_text = (
        f", best {best['metric']} {value:.4f} in epoch {best.get('epoch')}"
        if isinstance(value, float)
        else ""
    )
    return clean(f"{run}: {status}{after}{best_text}; {_go_on(run, status)}", limit=4096)


def _go_on(run: Path, status: str) -> str:
    word = shell_word(run)
    if status == "running":
        return f"watch it: mptui attach {word}"
    if status == "completed":
        return f"train longer: mptui resume {word} --epochs N"
    return f"resume: mptui resume {word}"
