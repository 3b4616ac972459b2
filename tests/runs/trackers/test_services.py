"""W&B, MLflow and Trackio beside TensorBoard, each read back by its own reader; none needs a network."""

import json
import math
import socket
import struct
import sys
from datetime import datetime
from importlib.util import find_spec

import pytest

from mptui.registry.trackers import TRACKERS
from mptui.runs.trackers.feeder import token_of
from mptui.runs.trackers.services import STEP
from mptui.testing import TrackerContract
from mptui.testing.tracker import course, scalars_in, write
from tests.runs.trackers.journals import end, feed, step
from tests.runs.trackers.test_local_files import in_float32, tensorboard_of

pytestmark = pytest.mark.slow  # importing each package takes seconds

HAS_TRACKIO = find_spec("trackio") is not None  # it asks for an older Pillow than the tests have
needs_trackio = pytest.mark.skipif(not HAS_TRACKIO, reason="trackio is not installed")


@pytest.fixture(scope="module", autouse=True)
def _no_syncs_of_databases():
    """Skips the syncs of SQLite too: to create MLflow's tables takes hundreds."""
    from sqlalchemy import Engine, event

    def unsynced(connection, _):
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", unsynced)
    yield
    event.remove(Engine, "connect", unsynced)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Refuses to look up other hosts; none is asked for."""
    hosts, look_up = [], socket.getaddrinfo

    def refused(host, *arguments, **options):
        if host in {None, "localhost", "127.0.0.1", "::1"}:
            return look_up(host, *arguments, **options)
        hosts.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "no network")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    yield
    assert hosts == []


@pytest.fixture
def service(tmp_path, monkeypatch):
    """The environment of trackers that keep all on this disk."""
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


@pytest.fixture
def run(tmp_path, service):
    """A run with a journal."""
    run = tmp_path / "run"
    write(run, *course(1, 30), end(30, "stopped"))
    return run


def records_in(path):
    """The records of a file of W&B: LevelDB's log format, after a header of seven bytes."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := -place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield record
            record = b""


def wandb_files(run):
    """W&B's offline files, oldest first."""
    return sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))


def wandb_records(run):
    """The records in W&B's offline files, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(data) for path in wandb_files(run) for data in records_in(path)]


def wandb_of(run):
    """(time, step, name, value) in W&B's offline files, oldest first, and W&B's own steps."""
    found, rows = [], []
    for record in wandb_records(run):
        if record.WhichOneof("record_type") == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append(row.pop("_step"))
            time, number = row.pop("_timestamp"), row.pop(STEP)
            found += [(time, number, name, value) for name, value in row.items() if name[0] != "_"]
    return found, rows


def mlflow_of(run):
    """(time, step, name, value) of a run in MLflow's database, and the status of it and its like."""
    from mlflow import MlflowClient

    client = MlflowClient()
    runs = [each for each in client.search_runs(["0"]) if each.info.run_name == run]
    found = [
        (point.timestamp / 1000, point.step, name, point.value)
        for each in runs
        for name in each.data.metrics
        for point in client.get_metric_history(each.info.run_id, name)
    ]
    return found, [each.info.status for each in runs]


def trackio_of(project, name):
    """(time, step, name, value) of a run in Trackio's database."""
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs(project).count(name) == 1
    return [
        (datetime.fromisoformat(str(row["timestamp"])).timestamp(), row["step"], key, value)
        for row in SQLiteStorage.get_logs(project, name)
        for key, value in row.items()
        if "/" in key
    ]


def test_a_run_tracked_by_all_at_once_is_in_each_what_it_is_in_the_journal(run):
    names = ["mlflow", "tensorboard", *["trackio"] * HAS_TRACKIO, "wandb"]
    chosen = {"trackers": names, "trackio_project": run.parent.name if HAS_TRACKIO else None}
    assert sorted(feed(run, **chosen)) == [("done", name, "32") for name in names]
    write(run, step(31, loss=math.inf, nonfinite=1), *course(32, 40), end(40))  # it is resumed
    assert sorted(feed(run, **chosen)) == [("done", name, "12") for name in names]

    assert [message for *_, message in feed(run, **chosen)] == ["0"] * len(names)
    expected = sorted(scalars_in(run))
    found, rows = wandb_of(run)
    assert sorted((*entry[:3], float(entry[3])) for entry in found) == expected
    assert rows == list(range(44))
    found, statuses = mlflow_of(run.name)
    most = sys.float_info.max  # MLflow's infinity
    assert sorted(found) == [(*entry[:3], min(entry[3], most)) for entry in expected]
    assert statuses == ["FINISHED"]
    if HAS_TRACKIO:
        assert (
            sorted((*entry[:3], float(entry[3])) for entry in trackio_of(run.parent.name, run.name))
            == expected
        )
    assert tensorboard_of(run) == in_float32(expected)


def test_a_resume_continues_the_same_run_at_wandb(run):
    feed(run, trackers=["wandb"])
    write(run, *course(31, 40), end(40))
    feed(run, trackers=["wandb"])
    runs = [record.run.run_id for record in wandb_records(run) if record.WhichOneof("record_type") == "run"]
    assert len(wandb_files(run)) == 2
    assert set(runs) == {token_of(run)}


class TestMlflow(TrackerContract):
    @pytest.fixture
    def spec(self, service):
        return TRACKERS["mlflow"]

    def read(self, run):
        return mlflow_of(run.name)[0]

    def stored(self, value):
        return min(value, sys.float_info.max)


@needs_trackio
class TestTrackio(TrackerContract):
    @pytest.fixture
    def spec(self, service):
        return TRACKERS["trackio"]

    @pytest.fixture
    def logging(self):
        return {"trackio_project": "contract"}

    def read(self, run):
        return [(*entry[:3], float(entry[3])) for entry in trackio_of("contract", run.name)]
