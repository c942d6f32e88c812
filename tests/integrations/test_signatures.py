"""Models of other signatures: litgpt's GPT from its package, and a stand-in with the signature of nanochat's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lab
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from tests.evidence import brute

ROWS, T, WINDOW, VOCABULARY, N = 3, 24, 96, 400, 3


class Nanochat(nn.Module):
    """The signature of karpathy/nanochat's GPT: a loss for targets, of which -1 has none, else logits."""

    def __init__(self):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, idx, targets=None, kv_cache=None, loss_reduction="mean"):
        logits = self.lm_head(self.wte(idx)).float()
        if targets is None:
            return logits
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=loss_reduction)


def litgpt():
    pytest.importorskip("litgpt", reason="pip install --no-deps 'litgpt==0.5.13'")
    from litgpt import GPT, Config

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": VOCABULARY, "padded_vocab_size": VOCABULARY}
    return GPT(Config(block_size=WINDOW, **sizes))


@pytest.fixture(scope="module")
def tokenizer(prepared):
    return load_tokenizer(shard_folder(prepared))


def batches():
    """Rows of few tokens, of which some targets have no loss."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        rows = torch.randint(5, 11, (ROWS, T + 1), generator=generator)
        targets = rows[:, 1:].clone()
        targets[:, 7:9] = -1
        yield rows[:, :-1], targets


@pytest.mark.parametrize("make", [Nanochat, litgpt])
def test_f_and_g_are_those_of_the_ids_received(make, tokenizer):
    model = make().train()
    watch = lab.watch(model, tokenizer, window=WINDOW, input="idx")
    demand = {}
    for ids, given in batches():
        if make is Nanochat:
            loss, targets = model(ids, given), torch.where(given < 0, brute.IGNORE, given)
        else:  # the loop computes the loss, so that every next token of a row counts
            loss, targets = model(ids).sum(), nn.functional.pad(ids[:, 1:], (0, 1), value=brute.IGNORE)
        loss.backward()
        flat = (ids.flatten().tolist(), targets.flatten().tolist(), [T] * ROWS)
        for d, n in brute.demand(*flat, lambda run, place: brute.repeat(run, place, N)).items():
            demand[d] = demand.get(d, 0) + n
    assert watch.incomplete is None
    assert watch.frequency().tolist() == [3 * ROWS * max(T - i, 0) for i in range(WINDOW)]
    assert watch.demand().tolist() == [demand.get(d, 0) for d in range(WINDOW)]
    assert sum(demand.values()) > 10
