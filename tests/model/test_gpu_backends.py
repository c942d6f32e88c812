"""Plain attention by every GPU backend, on a GPU or by stand-ins for its kernels, against its definition."""

import pytest

from lab.model.attention import attend
from tests.model.dense import dense_attention, rule
from tests.model.gpu_cases import assert_equal, documents, exact, kernels, leaves_on, needs, packed_layout


@kernels
@pytest.mark.parametrize("padding", [0, 5], ids=["full", "padded"])
def test_packed_rows_equal_the_segments_alone(device, backend, dtype, tolerance, padding):
    needs(backend, device)
    lengths = [17, 1, 40, 6]
    leaves = leaves_on(device, dtype, 1, 64 + padding, 64 + padding)
    out = attend(*leaves, layout=packed_layout(lengths, 64 + padding, device, dtype), backend=backend)
    copies = exact(leaves)
    docs, ids = documents(lengths, padding)
    expected = dense_attention(*copies, 10000.0, ids, ids, rule("document", docs))
    assert_equal(out, leaves, expected, copies, tolerance)


@kernels
def test_packed_rows_see_their_anchors(device, backend, dtype, tolerance):
    needs(backend, device)
    lengths, anchors = [9, 20, 12], (-1, 0, 9)
    leaves = leaves_on(device, dtype, 2, 44, 44)
    out = attend(*leaves, layout=packed_layout(lengths, 44, device, dtype, anchors=anchors), backend=backend)
    copies = exact(leaves)
    docs, ids = documents(lengths, 3)
    alone = rule("document", docs)

    def sees(b, m, n):
        return alone(b, m, n) or (docs[0][m] >= 0 and n == anchors[docs[0][m]])

    assert_equal(out, leaves, dense_attention(*copies, 10000.0, ids, ids, sees), copies, tolerance)


@kernels
@pytest.mark.parametrize("n_q", [1, 12, 33], ids=["decoding", "chunk", "whole_row"])
def test_plain_rows_equal_attention_by_definition(device, backend, dtype, tolerance, n_q):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 3, n_q, 33, rows=2)
    out = attend(*leaves, backend=backend)
    copies = exact(leaves)
    ids = [list(range(33))] * 2
    expected = dense_attention(*copies, 10000.0, [row[33 - n_q :] for row in ids], ids, rule("causal", None))
    assert out.dtype == dtype
    assert_equal(out, leaves, expected, copies, tolerance)


@kernels
def test_a_row_of_nothing_but_padding_comes_back_as_zeros(device, backend, dtype, tolerance):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 4, 8, 8)
    out = attend(*leaves, layout=packed_layout([], 8, device, dtype), backend=backend)
    assert out.shape == leaves[0].shape
    assert (out == 0).all()
