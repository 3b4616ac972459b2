"""What CONTRIBUTING.md and docs/failures.md name is there: each file, and each name of the code."""

import re
from pathlib import Path

from mptui.errors import error_of_code

ROOT = Path(__file__).parents[1]
_LINES = [
    (f"{name}:{number}", line)
    for name in ("CONTRIBUTING.md", "docs/failures.md")
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
]
_ELSEWHERE = {"nn.Module", "torch.optim.Optimizer", "multiprocessing", "dev", "if"}
"""Names of torch and Python, and of pyproject.toml."""
_EXAMPLES = {"seconds_idle", "still_s", "on_progress", "tell", "images_BCHW"}
"""Names that the house style gives as examples of what to write, and what not."""

_GONE = (
    "Standing|Follower|FarLoss|absolve|attend|bell|go_on|halves|hear|heard|island|leave_word|made_up|meet|obey"
    "|patience|say|settle|take_up|told|whole"
)


def quoted(line):
    """Return the words of a line in backquotes."""
    return re.findall(r"`([^`]+)`", line)


def is_path(word):
    return re.fullmatch(r"[\w./-]+(\.(py|md|toml)|/|/run)", word) is not None


def folders_of(line):
    """Return where the paths of a line are: a row of the table of rooms has those of its room."""
    room = re.match(r"\| `(\w+/)` \|", line)
    return [ROOT, ROOT / "mptui", *([ROOT / "mptui" / room[1]] if room else ())]


def test_each_path_is_there():
    missing = [
        f"{place}: {word}"
        for place, line in _LINES
        for word in filter(is_path, quoted(line))
        if not any((folder / word).exists() for folder in folders_of(line))
    ]
    assert not missing


def test_words_of_our_own_are_not_names_where_the_field_has_one():
    code = {path: path.read_text() for path in ROOT.glob("mptui/**/*.py")}
    found = [
        f"{path}: {name}"
        for path, text in code.items()
        for name in re.findall(rf"^ *(?:async )?(?:def|class) ({_GONE})\b", text, re.MULTILINE)
    ]
    assert not found


def test_a_class_name_that_leaves_its_module_is_there_once():
    places: dict[str, list[str]] = {}
    for path in ROOT.glob("mptui/**/*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def private_names_of_torch(path):
    """Return the names with an underscore that a module takes of torch; `torch._foreach_…` is documented."""
    attributes = r"(?<![\w.\"'`])(?:torch|nn|dist)(?:\.\w+)*\._(?!_|foreach_)\w+"
    imported = r"^ *from torch\S* import .*\b_\w+"
    return re.findall(f"{attributes}|{imported}", path.read_text(), re.MULTILINE)


def test_private_names_of_torch_stand_in_one_file():
    one = ROOT / "mptui" / "torch_private.py"
    assert {"torch._inductor", "torch._fused_sgd_"} <= set(private_names_of_torch(one))
    found = {
        str(path): names
        for path in ROOT.glob("mptui/**/*.py")
        if path != one and (names := private_names_of_torch(path))
    }
    assert not found


def test_each_name_is_defined():
    code = "\n".join(path.read_text() for room in ("mptui", "tests") for path in ROOT.glob(f"{room}/**/*.py"))
    defined = set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", code, re.MULTILINE))
    defined.update(re.findall(r"^ *(?:self\.)?(\w+)(?:: [^=\n]+)? = ", code, re.MULTILINE))
    defined.update(
        re.findall(r'^ *"(\w+): ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    )  # marks of tests
    defined.update(path.name for path in (ROOT / "mptui").iterdir())
    names = {
        word
        for _, line in _LINES
        for word in quoted(line)
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", word) and not is_path(word) and not word.startswith("mptui")
    }

    def is_defined(name):
        if name.endswith("_"):  # the beginning of several names
            return any(each.startswith(name) for each in defined)
        return defined.issuperset(name.split("."))

    assert not [name for name in sorted(names - _ELSEWHERE - _EXAMPLES) if not is_defined(name)]


def test_the_page_has_the_exit_code_of_each_kind_of_error():
    page = (ROOT / "README.md").read_text().partition("| exit code | meaning |")[2].partition("\n\n")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d)", page, re.MULTILINE)}
    assert listed == {0} | {error_of_code(code).exit_code for code in range(1, 128)}
