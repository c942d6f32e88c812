"""Garbage is collected before the first step and after every so many, and as usual once training has ended."""

import gc

import pytest

from lab.train import session
from lab.train.session import run_experiment
from lab.train.step import Training
from tests.fits import UNPROBED, load, settings_of


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_training_collects_after_fixed_steps_alone(tmp_path, monkeypatch, fails):
    collections, train = {}, Training.training_step

    def training_step(module, *words):
        step = module.trainer.global_step
        if fails and step == 6:
            raise RuntimeError("broken")
        for _ in range(5000):  # many times what makes Python collect
            cycle = []
            cycle.append(cycle)
        collections[step] = sum(generation["collections"] for generation in gc.get_stats())
        return train(module, *words)

    monkeypatch.setattr(session, "COLLECT_STEPS", 4)
    monkeypatch.setattr(Training, "training_step", training_step)
    experiment = load(*settings_of(tmp_path, "x"), *UNPROBED, "--train.tokens=10240")
    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            run_experiment(experiment, False, "again")
    else:
        run_experiment(experiment, False, "again")
    assert {step: n - collections[0] for step, n in collections.items()} == {step: step // 4 for step in collections}
    assert (len(collections), gc.isenabled(), gc.get_freeze_count()) == (6 if fails else 10, True, 0)
