import pytest
import torch

from lab.errors import DataError
from lab.model.attention.segments import Segments

FLOAT64_TOL = 2e-12  # sums of some hundred products of order one, each right to 1e-16, and a softmax
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


@pytest.mark.parametrize(
    "cu_seqlens",
    [[1, 4], [0, 5, 3, 8], [0, 4, 9], [0, -1], [], [3]],
    ids=["starts_late", "falls", "ends_beyond", "negative", "empty", "one_number_not_zero"],
)
def test_broken_cu_seqlens_are_refused(cu_seqlens):
    with pytest.raises(DataError, match=r"^cu_seqlens=\[.*must start at 0"):
        Segments.from_cu_seqlens(torch.tensor(cu_seqlens, dtype=torch.int32), 8)


def test_keys_with_their_anchor_by_hand():
    # three runs: the anchor, two tokens, one token; both see place 0
    segments = Segments.from_lengths([1, 2, 1], 5, anchors=(-1, 0, 0))
    spans = segments.spans
    assert segments.key_places.tolist() == [0, 0, 1, 2, 0, 3]
    assert (spans.cu_k.tolist(), spans.k_lengths) == ([0, 1, 4, 6], (1, 3, 2))
    assert (spans.cu_q.tolist(), spans.q_lengths) == ([0, 1, 3, 4], (1, 2, 1))
    assert spans.arguments[2:] == (2, 3)
    assert [x.tolist() for x in spans.places] == [[0, 1, 1, 2], [0, 0, 1, 0]]
    assert segments.anchor_of.tolist() == [-1, 0, 0, 0, -1]
