import pytest
import torch

from lab.data.preparation import shard_folder
from lab.probe.held_out import HeldOutLoss
from tests.data.stores import read_shard

PACK = 128


class Counter:
    """Scores a target by its own id, so that sums can be worked out from the text."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tokens, targets, segments):
        self.calls += 1
        assert tokens.shape == targets.shape == (1, PACK)
        assert segments.n_tokens == PACK
        return targets[targets >= 0].double().sum()


def held_out(config, tokens, rank=0, world_size=1):
    return HeldOutLoss(config, tokens=tokens, pack_tokens=PACK, rank=rank, world_size=world_size, device="cpu")


def sums(*arguments):
    model = Counter()
    return held_out(*arguments).sums(model).tolist(), model.calls


@pytest.mark.parametrize(("tokens", "packs"), [(PACK, 1), (3 * PACK, 3), (3 * PACK + 127, 3), (1, 1)])
def test_as_many_packs_are_scored_as_the_tokens_fill(prepared, tokens, packs):
    (_, scored), calls = sums(prepared, tokens)
    assert calls == packs
    assert 0 < scored <= packs * PACK


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_add_up_to_the_whole_and_call_equally_often(prepared, world_size):
    whole, _ = sums(prepared, 4 * PACK)
    shares = [sums(prepared, 4 * PACK, rank, world_size) for rank in range(world_size)]
    assert [sum(share[0][k] for share in shares) for k in (0, 1)] == whole
    assert {calls for _, calls in shares} == {-(-4 // world_size)}


def test_every_call_scores_the_same(prepared):
    probe, model = held_out(prepared, 3 * PACK), Counter()
    assert torch.equal(probe.sums(model), probe.sums(model))
    assert torch.equal(probe.sums(model), held_out(prepared, 3 * PACK).sums(model))


def test_what_is_scored_is_held_out_text(prepared):
    documents = [ids for ids, _ in read_shard(shard_folder(prepared) / "task-00000", "held_out")]
    pieces = {tuple(ids[k : k + 64]) for ids in documents for k in range(0, len(ids), 64)}
    for pack in held_out(prepared, 4 * PACK).packs:
        begin = 0
        for length in pack.lengths:
            assert tuple(pack.tokens[begin : begin + length].tolist()) in pieces
            begin += length
