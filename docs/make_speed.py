"""Print `speed.md`, what was measured where, from `benchmarks/results/*.json`.

python docs/make_speed.py > docs/speed.md
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def page() -> str:
    """The page, by `benchmarks/page/`."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.page.page import page

    return page(RESULTS)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
