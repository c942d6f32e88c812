"""A loss or gradient that is not finite: the update is left out, and all ranks stop."""

import contextlib
import io
from unittest.mock import patch

import pytest
import torch

from lab.config import load_experiment
from lab.model.decoder import Decoder
from lab.runs.checkpoints import candidates
from tests.fits import CONFIG, NO_PROBES, folders_of, records

STEPS, BAD = 6, 3  # a run's steps, and the one in which something is not finite
SETTINGS = {
    "train.tokens": 1024 * STEPS,
    "train.checkpoint_every_tokens": 1,  # at every step
    "train.keep_checkpoints": STEPS,
    **NO_PROBES,
}
DDP = {"train.devices": 2}
FSDP = {"train.devices": 2, "train.strategy": "fsdp"}
FACTORS = {"nan": torch.nan, "inf": torch.inf}


def settings(place, name, **others):
    return SETTINGS | folders_of(place, name) | others


def train_badly(settings, kind, step=BAD, resume=False):
    """Train where the last pack of a step, on the last rank, has a bad loss or gradient; return status and errors."""
    import os

    from lab.train.run import run_experiment

    own, world = Decoder.forward, settings.get("train.devices", 1)
    rank = int(os.environ["RANK"]) if world > 1 else 0
    calls, errors = [], io.StringIO()

    def forward(self, *arguments, **options):
        loss = own(self, *arguments, **options)
        calls.append(loss)
        if rank + 1 < world or len(calls) != step * (2 // world):
            return loss
        if kind == "gradient":
            loss.register_hook(lambda grad: grad * torch.nan)
            return loss
        return loss * FACTORS[kind]

    with (
        patch.object(Decoder, "forward", forward),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        status = run_experiment(load_experiment(CONFIG, settings), resume, "")
    lines = [line for line in errors.getvalue().splitlines() if line]
    return status, [line for line in lines if not line.startswith(("train: ", "prepare "))]


def train_badly_and_compare(settings):
    """Train where a step's gradient is NaN; return the status, and whether each update changed a weight or moment."""
    from lab.train import loop

    own, changes = loop.update, []

    def copies(state):
        moments = [moment for one in state.inner_optimizer.state.values() for moment in one.values()]
        tensors = [*state.decoder.parameters(), *moments]
        return [(x.to_local() if hasattr(x, "to_local") else x).detach().clone() for x in tensors]

    def comparing(state):
        before = copies(state)
        own(state)
        after = copies(state)
        changes.append(len(before) != len(after) or any(not x.equal(y) for x, y in zip(before, after)))

    with patch.object(loop, "update", comparing):
        status, _ = train_badly(settings, "nan")
    return status, changes


@pytest.mark.parametrize(("world", "strategy"), [(1, {}), (2, DDP), (2, FSDP)], ids=["single", "ddp", "fsdp"])
def test_a_nan_changes_no_weight_and_no_moment(place, ranks, world, strategy):
    name = f"planted{world}{strategy.get('train.strategy')}"
    results = ranks(world).run(train_badly_and_compare, settings(place, name, **strategy))
    for status, changes in results:
        assert status == 1
        assert changes == [True] * (BAD - 1) + [False]


@pytest.mark.parametrize(
    ("world", "kind", "strategy"),
    [
        pytest.param(1, "nan", {}, id="alone_nan"),
        pytest.param(2, "inf", DDP, id="ddp_inf"),
        pytest.param(2, "gradient", FSDP, id="fsdp_gradient"),
        pytest.param(2, "gradient", DDP, id="ddp_gradient", marks=pytest.mark.slow),
        pytest.param(2, "nan", FSDP, id="fsdp_nan", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_stop_and_keep_the_last_good_checkpoint(place, ranks, world, kind, strategy):
    name = f"{kind}{world}{strategy.get('train.strategy')}"
    results = ranks(world).run(train_badly, settings(place, name, **strategy), kind)
    assert [status for status, _ in results] == [1] * world
    assert [lines for _, lines in results][1:] == [[]] * (world - 1)
    (line,) = results[0][1]
    assert line.startswith(f"optim.lr=0.003: step {BAD}, which ends at ")
    assert ("gradient that is not finite" if kind == "gradient" else "loss that is not finite") in line
    lines = records(place / name)
    assert [record["skipped_steps"] for record in lines] == [0, 0, 1]
    assert lines[-1]["loss"] is None
    newest, *_ = candidates(place / name / "checkpoints")
    assert int(newest.name.removeprefix("tokens-")) == lines[BAD - 2]["consumed_tokens"]
