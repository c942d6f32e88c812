"""`lab.fit --profile`: a trace and a table of where time goes, and nothing else is left."""

import json

import pytest

from lab.errors import ConfigError
from lab.fit import SYNTAX, parse
from lab.train.session import profile_experiment
from tests.fits import CONFIG, load, settings_of


def test_a_profile_has_the_operations_of_steps_and_leaves_the_run_alone(tmp_path, capsys):
    experiment = load(*settings_of(tmp_path, "plain"), "--train.tokens=5120")
    assert profile_experiment(experiment, None) == 0
    (folder,) = experiment.run.path.iterdir()
    assert str(folder) in capsys.readouterr().out.splitlines()[-1]
    (trace,) = folder.glob("*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(str(event.get("name")).endswith("Strategy.backward") for event in events) == 3, "micro-batches"
    assert "AdamW.step" in (folder / "fit-profile.txt").read_text()


def test_what_contradicts_a_profile_is_refused():
    for words, fault in (
        (["--profile", "--resume"], "--resume: contradicts --profile"),
        (["-o", "out"], "-o=out: would be ignored without --profile"),
    ):
        with pytest.raises(ConfigError, match=f"^{fault}; "):
            parse(SYNTAX.read([str(CONFIG), *words]))
