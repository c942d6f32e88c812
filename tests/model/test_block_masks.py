"""Block masks of flex attention, against those that torch makes from the whole matrix."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from lab.model.attention import block_masks, devices
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies

ROPE = frequencies("rope", head_dim=8)


def documents(b, h, q, k):
    return (q >= k) & (q // 150 == k // 150)


def by_row(b, h, q, k):
    return (q >= k) & (q - k < 100 * (b + 1))


MASKS = {
    "documents": (documents, 1, 700, 700),
    "exact_blocks": (documents, 1, 512, 512),
    "one_query": (lambda b, h, q, k: k <= q + 299, 1, 1, 300),
    "one_pair": (lambda b, h, q, k: q == k, 1, 1, 1),
    "chunk": (lambda b, h, q, k: k <= q + 200, 1, 130, 330),
    "rows": (by_row, 3, 400, 400),
    "nothing": (lambda b, h, q, k: q < k * 0, 1, 200, 200),
    "everything": (lambda b, h, q, k: (q >= 0) & (k >= 0), 2, 256, 384),
}


def listed(mask):
    """Read which blocks of each row a mask lists, as sets."""
    found = {}
    for kind in ("kv", "full_kv", "q", "full_q"):
        numbers, places = getattr(mask, f"{kind}_num_blocks"), getattr(mask, f"{kind}_indices")
        assert numbers.dtype == places.dtype == torch.int32
        found[kind] = [p[: int(n)].tolist() for n, p in zip(numbers.flatten(), places.flatten(0, -2), strict=True)]
    return found


@pytest.mark.parametrize(("sees", "rows", "n_q", "n_k"), MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("pairs", [1, 60_000, 1 << 26])
def test_blocks_are_those_of_the_whole_matrix(monkeypatch, sees, rows, n_q, n_k, pairs):
    monkeypatch.setattr(block_masks, "PAIRS", pairs)
    device = torch.device("cpu")
    ours = block_masks.mask_of(sees, rows, n_q, n_k, device)
    theirs = create_block_mask(sees, rows, None, n_q, n_k, device="cpu")
    assert listed(ours) == listed(theirs)
    assert ours.seq_lengths == theirs.seq_lengths == (n_q, n_k)
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert ours.mask_mod is sees


class Largest(TorchDispatchMode):
    """Measure the largest tensor that an operator makes."""

    def __init__(self):
        super().__init__()
        self.n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.n_bytes = max(self.n_bytes, out.numel() * out.element_size())
        return out


def layout_of(lengths, n_tokens):
    segments = Segments.from_lengths(lengths, n_tokens)
    ids = segments.position_ids
    return Layout.of(ids, ids, ROPE, distance("string", shift=500, window=10), torch.float32, segments=segments)


def test_the_matrix_of_pairs_is_never_held(monkeypatch):
    monkeypatch.setattr(block_masks, "PAIRS", 1 << 20)
    layout = layout_of([3000, 1000], 4096)
    with Largest() as largest:
        block_masks.block_mask(layout, 0, layout.distance.bands[0], 1)
    assert largest.n_bytes <= 8 * (1 << 20)  # int64 distances of the pairs at hand, of 2^24


def test_a_layout_makes_each_mask_once(monkeypatch):
    layout = layout_of([300, 200], 512)
    made = [block_masks.block_mask(layout, n, band, 1) for n, band in enumerate(layout.distance.bands)]
    monkeypatch.setattr(block_masks, "mask_of", lambda *_: pytest.fail("made again"))
    for number, band in enumerate(layout.distance.bands):
        assert block_masks.block_mask(layout, number, band, 1) is made[number]


def test_many_rows_on_a_gpu_are_counted_by_a_compiled_function(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    calls = []

    def count(*arguments):
        calls.append(arguments[2])
        return block_masks.count_pairs(*arguments)

    monkeypatch.setattr(block_masks, "compiled_count", lambda: count)
    layout = layout_of([300, 200], 512)
    block_masks.block_mask(layout, 0, layout.distance.bands[0], 1)
    assert not calls
    monkeypatch.setattr(block_masks, "PAIRS", 1 << 17)
    block_masks.block_mask(layout_of([300, 200], 512), 0, layout.distance.bands[0], 1)
    assert calls == [(0, 2), (2, 4)]


@pytest.mark.slow
def test_the_compiled_count_serves_every_pack_of_a_run(monkeypatch):
    """Compiled once for each band, it runs on other documents of the same pack size."""
    layouts = [layout_of(lengths, 512) for lengths in ([300, 200], [100, 100, 250], [512])]
    compiled = torch.compile(block_masks.count_pairs)
    for number, layout in enumerate(layouts):
        for band_number, band in enumerate(layout.distance.bands):
            mask = block_masks.block_mask(layout, band_number, band, 1).mask_mod
            arguments = (mask, 1, (0, 4), 512, 512, torch.device("cpu"))
            with torch._dynamo.config.patch(error_on_recompile=number > 0):
                assert torch.equal(compiled(*arguments), block_masks.count_pairs(*arguments))
