"""TensorBoard and CSV copies of a run hold its records, through a resume too, and cost at most a line."""

import csv
import json
import sys
import time
from operator import itemgetter
from types import SimpleNamespace

import pytest

from lab.config import load_experiment
from lab.errors import MissingPackage
from lab.train.beginning import check_beginning
from lab.train.dashboards import dashboards_of
from lab.train.folder import RunFolder
from tests.fits import CONFIG, UNPROBED, exact_metrics, train

SHORT = (*UNPROBED, "--train.tokens=8192")


def start(place, kind="csv"):
    """A run of two lines and a probe, whose copy is open."""
    asked = {"run.folder": str(place), "run.name": "own", "track.loggers": [kind], "data.folder": str(place / "shards")}
    experiment = load_experiment(CONFIG, asked)
    folder = RunFolder(experiment.run.path)
    folder.path.mkdir(exist_ok=True)
    return folder, dashboards_of(experiment)[0]


def write(folder, dashboard, name, **record):
    folder.append(name, record)
    dashboard.mirror(record)


def begin(folder, dashboard):
    write(folder, dashboard, "metrics.jsonl", step=1, consumed_tokens=100, loss=5.5, mfu=None)
    write(folder, dashboard, "probes.jsonl", consumed_tokens=190, effective_length=None, held_out_loss=4.5)
    write(folder, dashboard, "metrics.jsonl", step=2, consumed_tokens=200, loss=4.25, mfu=None)


def resume(folder, kind="csv"):
    """Continue at the probe, which drops the second line and writes another."""
    folder.rewind(190)
    again = start(folder.path.parent, kind)[1]
    write(folder, again, "metrics.jsonl", step=3, consumed_tokens=210, loss=4.125, mfu=None)
    return again


def expected(folder):
    """List the numbers of both records, as they are on disk, by consumed tokens."""
    files = [folder.path / name for name in ("metrics.jsonl", "probes.jsonl")]
    rows = sorted((json.loads(line) for file in files for line in file.open()), key=itemgetter("consumed_tokens"))
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def test_a_csv_holds_the_records_and_continues_after_a_resume(tmp_path):
    def read():
        rows = [*csv.DictReader((folder.path / "csv" / "metrics.csv").open())]
        assert all(row.pop("step") == row["consumed_tokens"] for row in rows)
        numbers = [{key: float(value) for key, value in row.items() if value} for row in rows]
        return [{"step" if key == "optimizer_step" else key: x for key, x in row.items()} for row in numbers]

    folder, dashboard = start(tmp_path)
    begin(folder, dashboard)
    assert read() == expected(folder)  # before it is closed, as a kill may come
    dashboard.close(finished=False)
    resume(folder).close(finished=True)
    assert read() == expected(folder)
    assert [row["consumed_tokens"] for row in read()] == [100, 190, 210]


def test_tensorboard_holds_the_records_and_continues_after_a_resume(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder, dashboard = start(tmp_path, "tensorboard")
    begin(folder, dashboard)
    dashboard.close(finished=False)
    resume(folder, "tensorboard").close(finished=True)
    found = events.EventAccumulator(str(folder.path / "tensorboard")).Reload()
    curves = {name: [(event.step, event.value) for event in found.Scalars(name)] for name in ("loss", "held_out_loss")}
    assert curves == {"loss": [(100, 5.5), (210, 4.125)], "held_out_loss": [(190, 4.5)]}


def test_a_copy_that_cannot_be_written_is_one_line(tmp_path, capsys):
    folder, dashboard = start(tmp_path)
    (folder.path / "csv").write_text("")  # no folder
    begin(folder, dashboard)
    dashboard.close(finished=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("track.loggers=csv: ")
    assert line.endswith("; no longer mirrored, the run folder holds all")


def test_tensorboard_that_is_missing_is_one_line_before_lightning(tmp_path, monkeypatch):
    folder, _ = start(tmp_path)
    monkeypatch.setattr("lab.train.dashboards.find_spec", lambda name: None)
    experiment = load_experiment(CONFIG, {"run.folder": str(folder.path), "track.loggers": ["tensorboard"]})
    with pytest.raises(MissingPackage, match=r"tensorboard: not installed, .*track.loggers.*\[tensorboard\]'"):
        check_beginning(experiment, resume=False)


def fail(*status, **__):
    """Fail, as wandb.teardown does where wandb's own process has failed: by ending this one."""
    raise (SystemExit if status == (0,) else RuntimeError)("planted\nin two lines")


def hang(*_, **__):
    time.sleep(60)


def wandb_that(fault):
    """Stand in for wandb, of which one part fails or hangs."""
    if fault == "import":
        return None
    name, _, how = fault.partition("_")
    does = {name: hang if how else fail}
    works = lambda *_, **__: None  # noqa: E731
    run = SimpleNamespace(disabled=False, dir="x/y", define_metric=works, log=does.get("log", works))
    start = {"Settings": does.get("Settings", works), "init": does.get("init", lambda **_: run)}
    return SimpleNamespace(setup=works, teardown=does.get("teardown", works), **start)


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    return exact_metrics(train(tmp_path_factory.mktemp("untracked"), "none", *SHORT))


FAULTS = ["import", "Settings", "init", "log", "log_hangs", "teardown", "teardown_hangs", "csv"]


@pytest.mark.parametrize("fault", FAULTS)
def test_training_goes_on_whatever_a_tracker_does(tmp_path, monkeypatch, capsys, untracked, fault):
    monkeypatch.setitem(sys.modules, "wandb", wandb_that(fault))
    if "hangs" in fault:
        monkeypatch.setattr("lab.train.dashboards.LIMIT_S", 1.0)
    asked = "--track.wandb=offline"
    if fault == "csv":
        asked = "--track.loggers=[csv]"
        monkeypatch.setattr("lab.train.dashboards.remove", fail)
    run = train(tmp_path, "tracked", *SHORT, asked)
    assert exact_metrics(run) == untracked
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "track." in line]
    assert line.endswith("; no longer mirrored, the run folder holds all")
