"""`lab.fit --profile`: a trace and a table of where time goes, and nothing else is left."""

import contextlib
import io
import json

import pytest

from lab.config import load_experiment
from lab.errors import ConfigError
from lab.fit import SYNTAX, parse
from lab.train.folder import RunFolder
from lab.train.session import PROFILED, UNPROFILED, profile_experiment
from tests.fits import CONFIG, folders_of, load, settings_of
from tests.refusals import refused

STEPS = PROFILED + UNPROFILED


def test_a_profile_has_the_operations_of_three_steps_and_leaves_the_run_alone(tmp_path, capsys):
    experiment = load(*settings_of(tmp_path, "plain"), f"--train.tokens={STEPS * 1024}")
    assert profile_experiment(experiment, None) == 0
    folder = tmp_path / "runs" / "plain" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["profile.txt", "trace.json"]
    assert not RunFolder(experiment.run.path).holds_records(), "a run can still start there"
    written, shown = (folder / "profile.txt").read_text(), capsys.readouterr().out
    assert str(folder / "trace.json") in shown.splitlines()[-1]
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    backward = [e for e in events if str(e.get("name")).endswith("Strategy.backward")]
    assert len(backward) == 3 * 2, "three steps of two micro-batches"
    assert "AdamW.step" in written


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param(["--profile", "--resume"], "--resume: contradicts --profile; ", id="resume"),
        pytest.param(["--profile", "--dry_run"], "--dry_run: contradicts --profile; ", id="dry_run"),
        pytest.param(["-o", "out"], "-o out: would be ignored without --profile; ", id="no_profile"),
    ],
)
def test_options_that_contradict_a_profile_are_refused(words, fault):
    with pytest.raises(ConfigError) as error:
        parse(SYNTAX.read([str(CONFIG), *words]))
    assert str(error.value).startswith(fault)


def test_a_run_of_too_few_steps_is_refused(tmp_path):
    experiment = load(*settings_of(tmp_path, "short"), f"--train.tokens={(STEPS - 1) * 1024}")
    with refused("train.tokens=5120: --profile trains 6 steps of 1,024 tokens", error=ConfigError):
        profile_experiment(experiment, None)
    assert not (tmp_path / "runs").exists()


def profile(settings, folder):
    """Profile as one of the ranks."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        return profile_experiment(load_experiment(CONFIG, settings), folder), output.getvalue()


@pytest.mark.slow
def test_the_first_of_two_processes_writes_the_profile(ranks, tmp_path):
    settings = folders_of(tmp_path, "two") | {"train.devices": 2, "train.strategy": "fsdp"}
    settings |= {"train.tokens": STEPS * 4096, "train.batch_tokens": 4096}
    (status, first), (other, second) = ranks(2).run(profile, settings, tmp_path / "found")
    assert (status, other, second) == (0, 0, "")
    assert "backward" in first
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["profile.txt", "trace.json"]
    assert "FSDP::all_gather" in (tmp_path / "found" / "trace.json").read_text()
