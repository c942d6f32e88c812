"""A run that goes on under other strategies, on other processes, trains on the tokens of one that is never stopped."""

import signal

import numpy as np
import pytest

from lab.verify import main as verify
from tests.faults import Fault, Ledger
from tests.fits import UNPROBED, assert_equal_training, exact_metrics, records, world_of
from tests.replay import assert_same_weights

OPTIONS = (
    *("--train.tokens=6144", "--train.batch_tokens=512", "--train.micro_batch_tokens=128"),  # 12 steps of 4 packs
    *("--train.checkpoint_every_tokens=2048", "--probe.every_tokens=4096", "--probe.tests=2", "--probe.max_length=128"),
    # rows that four ranks cannot share out evenly
    *("--model.d_model=16", "--model.n_heads=2", "--model.n_kv_heads=2", "--model.d_ff=23", "--probe.loss_tokens=256"),
)
TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-4  # of losses, and of gradient norms: sums in another order
METHODS = {
    "plain": (),
    "tied": ("--model.tie_embeddings=true", "--track.every_steps=7"),  # lines at step 7 and at the end
    "anchor": ("--data.mode=concatenated", "--mask.method=anchor"),
    "weights": ("--weights.by=evidence", "--weights.keep=[[0,30]]"),
    "pose": ("--skip.method=pose", "--skip.target_len=240"),
    "longrecipe": ("--skip.method=longrecipe", "--skip.target_len=240"),
    "string": ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8"),
}
CHAINS = [  # parts, each with the steps after which the last rank gets SIGTERM
    *(("plain", "ddp2 3, ddp2 3, ddp2 3, ddp2"), ("plain", "ddp2 2, fsdp2 3, shared2 3, one"), ("tied", "ddp2 5, one")),
    *(("tied", "one 5, fsdp1"), ("plain", "fsdp2 5, ddp2"), ("plain", "fsdp1 5, fsdp2"), ("plain", "shared2 8, one")),
    ("anchor", "shared_fsdp2 8, one"),
]
STRATEGIES = ("one", "fsdp1", "ddp2", "fsdp2", "ddp4", "fsdp4")
MORE = [
    ("plain", "fsdp2 3, fsdp2 2, fsdp2 1, fsdp2"),
    ("plain", "shared2 1, shared2 1, shared2 5, shared2"),
    ("plain", "ddp4 3, shared4 1, fsdp4 4, ddp2 1, fsdp4"),
]
for k, a in enumerate(STRATEGIES):
    MORE += [(("tied", "plain")[(k + n) % 2], f"{a} 5, {b}") for n, b in enumerate(STRATEGIES)]
MORE += [(method, chain) for method in METHODS for chain in ("shared_fsdp2 8, one", "shared4 8, one")]


@pytest.mark.parametrize(
    ("method", "chain"),
    [*CHAINS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE if case not in CHAINS)],
)
def test_a_chain_of_stops_changes_no_token(place, ranks, method, chain, request):
    options = (*OPTIONS, *METHODS[method])
    whole, run = place / "runs" / f"whole_{method}", place / "runs" / request.node.callspec.id.replace(", ", "-")
    ledgers = [Ledger(f"{path}.ledger") for path in (run, whole)]
    if not whole.exists():
        assert ranks.train("one", place, whole.name, *options, faults=ledgers[1:]) == [0]
    for number, words in enumerate(chain.split(", ")):
        part, *steps = words.split()
        last = world_of(part) - 1
        stops = [Fault("lab.train.record:Recording.pause", int(signal.SIGTERM), int(n) + 1, (last,)) for n in steps]
        statuses = ranks.train(part, place, run.name, *options, resume=number > 0, faults=(ledgers[0], *stops))
        assert statuses == [75 if steps else 0] * world_of(part)
    assert ledgers[0].read() == ledgers[1].read()
    assert records(run)[-1]["step"] == 12
    assert_equal_training(run, whole, TOLERANCE)
    norms = ([record["grad_norm"] for record in records(path)] for path in (run, whole))
    np.testing.assert_allclose(*norms, rtol=NORM_TOLERANCE)
    np.testing.assert_array_equal(*(np.load(path / "counts.npz")["g"] for path in (run, whole)))
    assert verify([str(run)]) == 0


@pytest.mark.slow
def test_ddp_on_four_ranks_is_bit_equal_after_a_stop(place, ranks):
    """More than two ranks add up a bucket in an order that depends on the bucket."""
    options = (*UNPROBED, "--train.tokens=12288", "--train.batch_tokens=1024", "--train.micro_batch_tokens=256")
    stop = Fault("lab.train.record:Recording.pause", int(signal.SIGTERM), 4, (3,))
    ranks.train("ddp4", place, "unbroken", *options)
    assert ranks.train("ddp4", place, "broken", *options, faults=(stop,)) == [75] * 4
    ranks.train("ddp4", place, "broken", *options, resume=True)
    broken, unbroken = place / "runs" / "broken", place / "runs" / "unbroken"
    assert len(records(broken)) == 12
    assert exact_metrics(broken) == exact_metrics(unbroken)
    assert_same_weights(broken, unbroken)
