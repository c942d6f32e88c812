"""`lab.fit --profile`: a trace and a table of where time goes, and nothing else is left."""

import json

from lab.train.run import profile_experiment
from tests.fits import load, settings_of


def test_a_profile_has_the_operations_of_steps_and_leaves_the_run_alone(tmp_path, capsys):
    experiment = load(*settings_of(tmp_path, "plain"), "--train.tokens=5120")
    assert profile_experiment(experiment, None) == 0
    (folder,) = experiment.run.path.iterdir()
    assert str(folder) in capsys.readouterr().out.splitlines()[-1]
    (trace,) = folder.glob("*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("name") == "lab.backward" and event["cat"] == "user_annotation" for event in events) == 3
    assert any("AdamW.step" in str(event.get("name")) for event in events)
    assert "lab.backward" in (folder / "fit-profile.txt").read_text()
