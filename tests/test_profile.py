"""`lab.fit --profile`: a trace and a table of where time goes, and nothing else is left."""

import json

import pytest

from lab.core.errors import ConfigError
from lab.train.run import profile_experiment
from tests.fits import load, settings_of
from tests.refusals import refused

PACK = 512  # tokens


@pytest.mark.parametrize("packs", [1, 8], ids=["no_accumulation", "as_tiny_2k"])
def test_a_profile_has_an_update_between_two_packs_and_leaves_the_run_alone(tmp_path, capsys, packs):
    tokens = (f"--train.batch_tokens={packs * PACK}", f"--train.micro_batch_tokens={PACK}")
    last = max(4, 2 * packs) + 1  # the pack after the fourth update, or the second of several packs
    words = (*settings_of(tmp_path, "plain"), *tokens, "--optim.warmup_steps=0")
    with refused(f"train.tokens={(last - 1) * PACK}: --profile needs more than {last - 1} packs", error=ConfigError):
        profile_experiment(load(*words, f"--train.tokens={(last - 1) * PACK}"), None)
    experiment = load(*words, f"--train.tokens={100 * packs * PACK}")
    assert profile_experiment(experiment, None) == 0
    (folder,) = experiment.run.path.iterdir()
    assert str(folder) in capsys.readouterr().out.splitlines()[-1]
    (trace,) = folder.glob("*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    starts = {
        name: sorted(e["ts"] for e in events if e.get("name") == name and e["cat"] == "user_annotation")
        for name in ("lab.forward", "lab.backward", "lab.update")
    }
    assert [len(starts[name]) for name in ("lab.forward", "lab.backward")] == [3, 3]
    middle = [at for at in starts["lab.update"] if starts["lab.backward"][1] < at < starts["lab.forward"][2]]
    assert (len(middle), len(starts["lab.update"])) == (1, 3 if packs == 1 else 1)
    assert any("AdamW.step" in str(event.get("name")) for event in events)
    assert "lab.backward" in (folder / "fit-profile.txt").read_text()
