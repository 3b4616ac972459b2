"""Measures what the tests catch: 80 small faults are put into a copy of `mptui`, one at a time.

    python -m tests.tools.mutants choose --seed 0    draws the places; kept in mutants.json
    python -m tests.tools.mutants record             runs all tests once: which reach which places
    python -m tests.tools.mutants run                runs for each fault the tests that reach it

A place is found again in a later tree by its room, function and statement; what is gone is replaced by
the next of its room. `record` takes as long as the tests, `run` some 20 s a fault. A fault is caught when a
test fails with it, fails with it once more alone, and passes without it.
"""

import argparse
import dataclasses
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.tools import sites as places
from tests.tools.copies import ROOT, copied_tree
from tests.tools.sites import ROOMS, Site, Tree
from tests.tools.worker import Worker

CHOSEN = Path(__file__).with_name("mutants.json")
MAP = Path(tempfile.gettempdir()) / "mptui-mutants-map.json"
_FEWEST = 2
"""Sites of a room."""
_FIRST_TESTS = 30
"""Tests that are tried first: to collect many files takes longer than most tests."""
_ALL_S = 1800
"""Seconds after which a run of many tests is given up."""
_SPARES = 10
"""Further sites of a room, for those that are gone."""
_NOT_REACHING_S = 30
"""Seconds of tests that are not known to reach a site: what a process keeps, only the first test computes."""


def choose(seed, count):
    """Draw the sites, in proportion to the lines of the rooms; each kind alike, one a function."""
    tree, chance = Tree(ROOT), random.Random(seed)
    rooms: dict[str, dict[str, Any]] = {}
    for room, quota in _quotas({room: tree.lines[room] for room in ROOMS}, count).items():
        found = tree.sites(room)
        chance.shuffle(found)
        ranks: Counter[str] = Counter()
        ranked = []
        for site in found:
            ranked.append((ranks[site.kind], chance.random(), site))
            ranks[site.kind] += 1
        functions: dict[str, Site] = {}
        others: dict[tuple[str, str], Site] = {}
        for *_, site in sorted(ranked, key=lambda one: one[:2]):
            if functions.setdefault(site.function, site).statement != site.statement:
                others.setdefault((site.function, site.statement), site)
        drawn = [*functions.values(), *others.values()][: quota + _SPARES]
        rooms[room] = {"count": min(quota, len(drawn)), "sites": [vars(site) for site in drawn]}
    most = max(rooms, key=lambda room: tree.lines[room])
    rooms[most]["count"] += count - sum(room["count"] for room in rooms.values())  # what a small room lacks
    CHOSEN.write_text(json.dumps({"seed": seed, "rooms": rooms}, indent=1) + "\n", encoding="utf-8")


def _quotas(lines, count):
    """Share out the count by the largest remainders, at least a few to each room that has lines."""
    whole = sum(lines.values())
    shares = {room: max(_FEWEST, count * number / whole) for room, number in lines.items() if number}
    more = sum(share for share in shares.values() if share > _FEWEST)
    left = count - _FEWEST * sum(share == _FEWEST for share in shares.values())
    exact = {room: share if share == _FEWEST else share * left / more for room, share in shares.items()}
    quotas = {room: int(share) for room, share in exact.items()}
    by_rest = sorted(exact, key=lambda room: quotas[room] - exact[room])
    for room in by_rest[: count - sum(quotas.values())]:
        quotas[room] += 1
    return quotas


def chosen(tree):
    """Return the sites that the tree has, each with its statement and mutation, and those that are gone."""
    there, gone = {}, []
    for room in json.loads(CHOSEN.read_text(encoding="utf-8"))["rooms"].values():
        left = room["count"]
        for fields in room["sites"]:
            if not left:
                break
            site = _site_of(fields)
            if found := tree.find(site):
                there[site] = found
                left -= 1
            else:
                gone.append(site)
    return there, gone


def _site_of(fields):
    return Site(**{each.name: fields[each.name] for each in dataclasses.fields(Site)})


def record(map_file):
    """Run all tests once in a copy that writes down who reaches the sites."""
    there, _ = chosen(Tree(ROOT))
    begun = time.monotonic()
    with copied_tree() as (root, environ):
        shutil.copy(Path(__file__).with_name("reached.py"), root / "reached.py")
        _mark(root, [found[0] for found in there.values()])
        subprocess.run(
            ["python", "-m", "pytest", "-p", "reached", "-p", "no:cacheprovider"],
            cwd=root,
            env=environ,
            check=False,
        )
        lines = (root / "reached.jsonl").read_text(encoding="utf-8").splitlines()
    known = _known([json.loads(line) for line in lines], [site.key for site in there])
    known["took_s"] = round(time.monotonic() - begun)
    map_file.write_text(json.dumps(known, indent=1), encoding="utf-8")
    print(f"{len(known['seconds'])} tests have passed; left out are those that failed: {known['failed']}")


def _known(lines, keys):
    seconds: Counter[str] = Counter()
    passed, failed, reach = set(), set(), defaultdict(set)
    for line in lines:
        if "site" in line:
            reach[keys[line["site"]]].add(line["test"])
            continue
        seconds[line["done"]] += line["seconds"]
        if line["outcome"] == "failed":
            failed.add(line["done"])
        elif line["at"] == "call" and line["outcome"] == "passed":
            passed.add(line["done"])
    passed -= failed
    return {
        "seconds": {test: round(seconds[test], 3) for test in sorted(passed)},
        "failed": sorted(failed),
        "sites": {key: sorted(reach[key] & passed) for key in keys},
    }


def _mark(root, statements):
    """Put a call before each statement that says that a test has come there."""
    by_file = defaultdict(list)
    for number, statement in enumerate(statements):
        by_file[statement.path.relative_to(ROOT)].append((number, statement.node))
    for name, nodes in by_file.items():
        source = (root / name).read_bytes()
        for number, node in sorted(nodes, key=lambda one: -one[1].lineno):
            source = marked(source, number, node)
        compile(source, name, "exec")
        (root / name).write_bytes(source)


def marked(source, number, node):
    """Return the source with the call of `reached.at` before the statement, or in the test of an `elif`."""
    starts = places.line_starts(source)
    begin = starts[node.lineno - 1] + node.col_offset
    call = f'__import__("reached").at({number})'
    if source[begin:].startswith(b"elif"):
        test = node.test
        first, last = (
            starts[test.lineno - 1] + test.col_offset,
            starts[test.end_lineno - 1] + test.end_col_offset,
        )
        return source[:first] + f"({call} or (".encode() + source[first:last] + b"))" + source[last:]
    end = f"\n{' ' * node.col_offset}" if hasattr(node, "body") else "; "
    return source[:begin] + (call + end).encode() + source[begin:]


def run(map_file, output, limit_s, jobs, resume):
    """Try each fault, and report what the tests have caught."""
    there, gone = chosen(Tree(ROOT))
    known = json.loads(map_file.read_text(encoding="utf-8"))
    if missing := [site.key for site in there if site.key not in known["sites"]]:
        raise SystemExit(f"{map_file} is of other sites: record again. The first: {missing[0]}")
    begun = time.monotonic()
    results: dict[Site, dict[str, Any]] = {site: {"end": "gone"} for site in gone}
    if resume:
        earlier = {_site_of(one): one for one in json.loads(output.read_text(encoding="utf-8"))["results"]}
        results |= {site: earlier[site] for site in there if site in earlier}

    def answer():
        ordered = sorted(results, key=lambda site: (ROOMS.index(site.room), site.function))
        told = [{**vars(site), **results[site]} for site in ordered]
        took_s = round(time.monotonic() - begun)
        return {"took_s": took_s, "recorded_s": known["took_s"], "limit_s": limit_s, "results": told}

    def serve(sites):
        with copied_tree() as (root, environ):
            worker, catching = Worker(root, environ), set()
            for site in sites:
                statement, mutation = there[site]
                results[site] = _tried(worker, site, statement, mutation, known, limit_s)
                catching.add(results[site]["by"])
                print(f"{len(results)}: {results[site]['end']}: {site.key[:150]}", flush=True)
                if output:
                    output.write_text(json.dumps(answer(), indent=1) + "\n", encoding="utf-8")
            failing = _failing_alone(worker, sorted(catching - {None}))
            worker.close()
        return failing

    queue, failing = iter([site for site in there if site not in results]), {""}
    while failing:
        with ThreadPoolExecutor(jobs) as threads:
            served = [threads.submit(serve, queue) for _ in range(jobs)]  # each takes the next of the queue
            failing = set().union(*(one.result() for one in served))
        for tests in (known["seconds"], *known["sites"].values()):
            for test in failing & set(tests):
                tests.pop(test) if tests is known["seconds"] else tests.remove(test)
        queue = iter([site for site in there if results[site]["by"] in failing])
    print(report(answer()))


def _failing_alone(worker, tests):
    """Return the tests that fail without a fault, too."""
    failing = set()
    while tests and (failed := worker.first_failing(tests, _ALL_S)) in tests:
        if worker.first_failing([failed], _ALL_S):
            failing.add(failed)
        tests = tests[tests.index(failed) + 1 :]
    return failing


def _tried(worker, site, statement, mutation, known, limit_s):
    reaching = known["sites"][site.key]
    line = f"{statement.path.relative_to(ROOT)}:{mutation.node.lineno}"
    if not reaching:
        return {
            "line": line,
            "to": mutation.text,
            "end": "not reached",
            "by": None,
            "reaching": 0,
            "left_out": 0,
        }
    tests, cut = _ordered(reaching, site.room, statement.path.stem.strip("_"), known["seconds"], limit_s)
    doubtful: list[str] = []
    begun = time.monotonic()
    end, by = _end_of(worker, statement, mutation, tests, 3 * limit_s, doubtful)
    return {
        "line": line,
        "to": mutation.text,
        "end": end,
        "by": by,
        "reaching": len(reaching),
        "left_out": cut,
        "doubtful": doubtful,
        "took_s": round(time.monotonic() - begun, 1),
    }


def _end_of(worker, statement, mutation, tests, limit_s, doubtful):
    """Return what becomes of the fault, and the test that fails: a few are tried first."""
    end, number = time.monotonic() + limit_s, _FIRST_TESTS
    while tests:
        with worker.changed(statement, mutation):
            failed = worker.first_failing(tests[:number], max(end - time.monotonic(), 1))
            if failed == "timed out":
                return failed, None
            if failed and worker.first_failing([failed], limit_s):
                return "caught", failed
        if failed:
            doubtful.append(failed)
            tests = tests[tests.index(failed) + 1 :]
        else:
            tests, number = tests[number:], len(tests)
    return "survived", None


def _ordered(reaching, room, subject, seconds, limit_s):
    """Return the tests to run, those first that cost little and are of the room, and how many are cut."""

    def place(test):
        file = test.partition("::")[0]
        same = file.startswith(f"tests/{room}/")
        return (seconds[test] > 3, seconds[test] > 0.5, not same, subject not in file, file, seconds[test])

    def with_time(tests):
        nonlocal limit_s
        for test in tests:
            if seconds[test] <= limit_s:
                limit_s -= seconds[test]
                yield test

    tests = list(with_time(sorted(reaching, key=place)))
    cut = len(reaching) - len(tests)
    files = {test.partition("::")[0] for test in reaching}
    near = [test for test in seconds if test.partition("::")[0] in files or test.startswith(f"tests/{room}/")]
    limit_s = min(limit_s, _NOT_REACHING_S)
    others = sorted(
        set(near) - set(reaching), key=lambda one: (one.partition("::")[0] not in files, place(one))
    )
    return [*tests, *with_time(others)], cut


def report(answer):
    """Return the table by rooms, and the faults that no test has caught."""
    ends = ("caught", "survived", "timed out", "not reached", "gone")
    counts = {room: Counter(one["end"] for one in answer["results"] if one["room"] == room) for room in ROOMS}
    counts["all"] = sum(counts.values(), Counter())
    lines = [f"| room | {' | '.join(ends)} |", "|---" * (len(ends) + 1) + "|"]
    lines += [f"| {room} | {' | '.join(str(count[end]) for end in ends)} |" for room, count in counts.items()]
    lines += ["", f"{answer['took_s']} s, after {answer['recorded_s']} s of recording", ""]
    for one in answer["results"]:
        if one["end"] not in ("caught", "gone"):
            cut = f", {one['left_out']} of them without time" if one["left_out"] else ""
            lines.append(
                f"- {one['end']}: {one['line']} {one['function']}: {one['kind']}: `{one['statement'][:120]}`"
            )
            lines.append(f"  -> `{one['to'][:120]}`; {one['reaching']} tests reach it{cut}")
    return "\n".join(lines)


def main():
    """Run the command that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    choice = commands.add_parser("choose")
    choice.add_argument("--seed", type=int, default=0)
    choice.add_argument("--count", type=int, default=80)
    recording = commands.add_parser("record")
    running = commands.add_parser("run")
    for command in (recording, running):
        command.add_argument("--map", type=Path, default=MAP, help="what record writes and run reads")
    running.add_argument("--output", type=Path, help="the result, as JSON")
    running.add_argument("--limit", type=float, default=120, help="seconds of tests for a fault")
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--resume", action="store_true", help="go on with what --output already has")
    given = parser.parse_args()
    if given.command == "choose":
        choose(given.seed, given.count)
    elif given.command == "record":
        record(given.map)
    else:
        run(given.map, given.output, given.limit, given.jobs, given.resume)


if __name__ == "__main__":
    main()
