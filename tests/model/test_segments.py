import pytest
import torch

from lab.errors import DataError
from lab.model.attention import attend
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.dense import dense_attention, draw, rule

FLOAT64_TOL = 2e-12  # sums of some hundred products of order one, each right to 1e-16, and a softmax
HEADS, KV_HEADS, WIDTH = 4, 2, 8
PACKS = {  # lengths, padding tokens after them
    "mixed": ([3, 7, 1, 4, 2], 0),
    "mixed_padded": ([3, 7, 1, 4, 2], 5),
    "one_segment": ([9], 0),
    "one_token": ([1], 0),
    "one_token_padded": ([1], 3),
    "all_of_length_one": ([1] * 6, 2),
    "all_equal": ([4, 4, 4], 1),
    "very_uneven": ([1, 30, 2, 15, 1], 3),
}
packs = pytest.mark.parametrize(("lengths", "padding"), PACKS.values(), ids=PACKS)


def cumulative(lengths):
    return torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)


def pack(lengths, padding):
    return Segments.from_cu_seqlens(cumulative(lengths), sum(lengths) + padding)


def attend_packed(q, k, v, segments, backend):
    rope = frequencies("rope", head_dim=WIDTH)
    plain = distance("plain")
    layout = Layout.of(segments.position_ids, segments.position_ids, rope, plain, q.dtype, segments=segments)
    return attend(q, k, v, layout=layout, backend=backend)


@packs
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_packed_row_equals_each_segment_alone_with_gradients(lengths, padding, backend):
    total = sum(lengths) + padding
    leaves = [x.requires_grad_() for x in draw(1, 1, HEADS, KV_HEADS, total, total, WIDTH)]
    out = attend_packed(*leaves, pack(lengths, padding), backend)
    expected, start = [], 0
    for n in lengths:
        q, k, v = (x[:, :, start : start + n] for x in leaves)
        expected.append(dense_attention(q, k, v, 10000.0, [range(n)], [range(n)], rule("causal", None)))
        start += n
    expected.append(0.0 * leaves[0][:, :, start:])  # padding comes back as zeros
    expected = torch.cat(expected, dim=2)
    torch.testing.assert_close(out, expected, rtol=0, atol=FLOAT64_TOL)
    weight = draw(2, 1, HEADS, KV_HEADS, total, total, WIDTH)[0]
    got = torch.autograd.grad((out * weight).sum(), leaves)
    wanted = torch.autograd.grad((expected * weight).sum(), leaves)
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=10 * FLOAT64_TOL)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_row_of_nothing_but_padding_comes_back_as_zeros(backend):
    q, k, v = draw(4, 1, HEADS, KV_HEADS, 4, 4, WIDTH)
    segments = pack([], 4)
    assert segments.doc_ids.tolist() == [-1] * 4
    assert (segments.n_real, segments.max_length) == (0, 0)
    out = attend_packed(q, k, v, segments, backend)
    assert out.shape == q.shape
    assert (out == 0).all()


@packs
def test_ids_and_documents_by_definition(lengths, padding):
    segments = pack(lengths, padding)
    ids = [i for n in [*lengths, padding] for i in range(n)]
    docs = [s for s, n in enumerate(lengths) for _ in range(n)] + [-1] * padding
    assert segments.position_ids.tolist() == ids
    assert segments.doc_ids.tolist() == docs
    assert segments.position_ids.dtype == segments.doc_ids.dtype == torch.int64
    assert (segments.n_real, segments.n_tokens) == (sum(lengths), sum(lengths) + padding)
    assert segments.max_length == max(lengths, default=0)
    assert segments.cu_seqlens.tolist() == cumulative(lengths).tolist()
    assert segments.cu_seqlens.dtype == torch.int32


def test_empty_segments_hold_nothing():
    segments = Segments.from_cu_seqlens(torch.tensor([0, 0, 3, 3, 3, 5, 5]), 6)
    assert segments.lengths == (3, 2)
    assert segments.doc_ids.tolist() == [0, 0, 0, 1, 1, -1]
    q, k, v = draw(3, 1, HEADS, KV_HEADS, 6, 6, WIDTH)
    for backend in ("reference", "sdpa"):
        out = attend_packed(q, k, v, segments, backend)
        assert torch.equal(out, attend_packed(q, k, v, pack([3, 2], 1), backend))


@pytest.mark.parametrize(
    "cu_seqlens",
    [[1, 4], [0, 5, 3, 8], [0, 4, 9], [0, -1], [], [3]],
    ids=["starts_late", "falls", "ends_beyond", "negative", "empty", "one_number_not_zero"],
)
def test_broken_cu_seqlens_are_refused(cu_seqlens):
    with pytest.raises(DataError, match=r"^cu_seqlens=\[.*must start at 0"):
        Segments.from_cu_seqlens(torch.tensor(cu_seqlens, dtype=torch.int32), 8)
