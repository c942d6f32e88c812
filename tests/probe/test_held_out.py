import numpy as np
import pytest

from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.probe.measuring import HeldOutLoss, context_loss

PACK = 128


class Counter:
    """Scores a target by its own id, so that sums can be worked out from the text."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tokens, targets, segments):
        self.calls += 1
        assert tokens.shape == targets.shape == (1, PACK)
        assert segments.n_tokens == PACK
        return targets * (targets >= 0)


def held_out(config, tokens, rank=0, world_size=1):
    return HeldOutLoss(config, tokens=tokens, pack_tokens=PACK, rank=rank, world_size=world_size, device="cpu")


def sums(*arguments):
    model = Counter()
    return held_out(*arguments).sums(model).sum(0).tolist(), model.calls


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_add_up_to_the_whole(prepared, world_size):
    whole, _ = sums(prepared, 4 * PACK)
    shares = [sums(prepared, 4 * PACK, rank, world_size) for rank in range(world_size)]
    assert [sum(share[0][k] for share in shares) for k in (0, 1)] == whole
    assert sum(calls for _, calls in shares) == 4


def test_loss_by_visible_context_by_brute_force(prepared):
    probe, expected = held_out(prepared, 4 * PACK), {}
    for pack in probe.packs:
        begins = np.cumsum([0, *pack.lengths])
        for place, target in enumerate(pack.targets):
            if target >= 0:
                earlier = place - max(begin for begin in begins if begin <= place)
                fewest = max([0, *(2**k for k in range(9) if 2**k <= earlier)])
                expected.setdefault(str(fewest), []).append(int(target))
    assert context_loss(probe.sums(Counter())) == pytest.approx({k: np.mean(v) for k, v in expected.items()})


def test_bytes_are_those_of_the_scored_text_on_every_rank(prepared):
    tokenizer = load_tokenizer(shard_folder(prepared))
    whole = held_out(prepared, 4 * PACK)
    scored = [tokenizer.decode(pack.targets[pack.targets >= 0].tolist()) for pack in whole.packs]
    assert whole.n_bytes == len("".join(scored).encode()) == held_out(prepared, 4 * PACK, 1, 3).n_bytes
