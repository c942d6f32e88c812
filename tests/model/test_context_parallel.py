"""Ranks that share rows compute what one process does: logits, losses and gradients, under every method and mask."""

import pytest
import torch
from torch import distributed

from lab.model.attention.segments import ContextGroup, Segments
from lab.model.config import LayersConfig
from tests.model.methods import DISTANCES, DYNAMIC, FREQUENCIES, decoder, tokens
from tests.ranks import meet

TOLERANCE = 1e-5  # float32; arXiv:2411.13476, Table 8, has 0
T = 48
LENGTHS = (13, 9, 18)  # and 8 tokens of padding
ANCHORED = Segments.from_lengths(LENGTHS, T, anchors=(-1, 0, 0))
ROTARY = FREQUENCIES | {"dynamic_ntk": DYNAMIC}
GAPS = torch.arange(T) * 3 + (torch.arange(T) > 20) * 7
MASKS = {
    "rows": {},
    "gaps": {"position_ids": GAPS},
    "document": {"segments": Segments.from_lengths(LENGTHS, T)},
    "anchor": {"segments": ANCHORED, "position_ids": torch.arange(T), "starts": (0, 13, 22)},
}
LAYERS = LayersConfig(pattern=("window", "nope", "part"), window=7, fraction=0.5)
CASES = [
    *(("rope", "layers", mask, "auto") for mask in ("rows", "document")),
    *(("rope", name, mask, "auto") for name in DISTANCES for mask in MASKS),
    *((name, "plain", mask, "auto") for name in ROTARY for mask in ("rows", "document")),
    *(("rope", name, mask, "reference") for name in ("plain", "string") for mask in MASKS),
]


def outcome(case, heads, context=None):
    """Compute logits, losses and gradients; of a group's rank, those of its part."""
    rotary, distance, mask, backend = case
    sizes = {"d_model": 64, "n_heads": 8, "n_kv_heads": heads, "layers": LAYERS if distance == "layers" else None}
    method = DISTANCES.get(distance, DISTANCES["dca"])
    model, given = decoder(ROTARY[rotary], method, torch.float32, backend=backend, **sizes).train(), MASKS[mask]
    rows = tokens(5, 1 if "segments" in given else 2, T)
    targets = torch.where(tokens(6, *rows.shape) % 5 > 0, rows.roll(-1, 1), -100)
    weights = tokens(7, *rows.shape).float()
    with torch.no_grad():
        logits = model(rows, **given, context=context)
        losses = model(rows, **given, context=context, targets=targets, summed=False)
    loss = model(rows, **given, context=context, targets=targets, loss_weights=weights)
    loss[0].backward()
    return {"logits": logits, "losses": losses, "sums": loss.detach()}, [p.grad for p in model.parameters()]


def share(cases, degree, heads):
    """Compute the cases as one of the ranks of a group; sums and gradients are added up over the ranks."""
    meet()
    context, found = ContextGroup.create(degree), []
    for case in cases:
        out, gradients = outcome(case, heads, context)
        for part in [out["sums"], *gradients]:
            distributed.all_reduce(part, group=context.group)
        found.append((out, gradients))
    return found


def assert_as_one(ranks, world, degree, heads, cases):
    shares = ranks(world).run(share, cases, degree, heads)
    for number, case in enumerate(cases):
        (out, gradients), parts = outcome(case, heads), [found[number] for found in shares[:degree]]
        assert out["sums"][0] > 2 * out["sums"][1] > 0
        together = {name: torch.cat([part[0][name] for part in parts], 1) for name in ("logits", "losses")}
        pairs = [(value, out[name]) for name, value in {**together, "sums": parts[0][0]["sums"]}.items()]
        for mine, whole in [*pairs, *zip(parts[0][1], gradients, strict=True)]:
            error = (mine - whole).abs().max() / whole.abs().max().clamp_min(1)
            assert error <= TOLERANCE, f"{case}: {error}"


def test_two_ranks_compute_what_one_computes(ranks):
    kinds = ("plain", "string", "self_extend", "layers")  # one band, two, a second key map, and layers
    assert_as_one(ranks, 2, 2, 4, [case for case in CASES if case[1] in kinds])


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "heads"), [(2, 2), (2, 4), (4, 4), (4, 8)])
def test_four_ranks_compute_what_one_computes(ranks, degree, heads):
    assert_as_one(ranks, 4, degree, heads, CASES)
