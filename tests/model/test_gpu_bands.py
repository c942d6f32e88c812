"""Distance methods and masks by every GPU backend, on a GPU or by stand-ins for its kernels, pair by pair."""

import pytest
import torch

from lab.model.attention import attend
from lab.model.attention.attend import attend_cached
from lab.model.attention.cache import KeyCache
from lab.model.attention.layout import Layout
from lab.model.attention.plan import plan_for
from lab.model.attention.segments import Segments
from lab.positions import distance
from tests.model.dense import attention_by_distance, rule
from tests.model.gpu_cases import (
    BFLOAT16,
    FLOAT32,
    KV_HEADS,
    METHODS,
    ROPE,
    SPEEDS,
    WIDTH,
    assert_equal,
    by_equation,
    documents,
    exact,
    leaves_on,
    methods,
    needs,
    packed_layout,
    tiled,
)


@tiled
@methods
def test_distance_methods_on_packed_rows_equal_their_equation(device, backend, dtype, tolerance, method, rel):
    needs(backend, device)
    lengths, padding = [45, 1, 90, 21], 3
    leaves = leaves_on(device, dtype, 5, 160, 160)
    layout = packed_layout(lengths, 160, device, dtype, method)
    out = attend(*leaves, layout=layout, backend=backend)
    copies = exact(leaves)
    expected = by_equation(copies, method, rel, *documents(lengths, padding))
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
@methods
@pytest.mark.parametrize("n_q", [1, 50], ids=["decoding", "chunk"])
def test_distance_methods_on_rows_equal_their_equation(device, backend, dtype, tolerance, method, rel, n_q):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 6, n_q, 90, rows=2 if n_q == 50 else 1)
    out = attend(*leaves, distance=method, backend=backend)
    copies = exact(leaves)
    row = list(range(90))
    expected = by_equation(copies, method, rel, [[0] * 90] * len(out), [row] * len(out))
    assert out.dtype == dtype
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
def test_distance_methods_see_anchors(device, backend, dtype, tolerance):
    needs(backend, device)
    method, rel = METHODS["string"]
    lengths, anchors = [40, 50, 6], (-1, 0, 40)
    segments = Segments.from_lengths(lengths, 100, device, anchors)
    leaves = leaves_on(device, dtype, 7, 100, 100)
    ids = torch.arange(100, device=device)
    layout = Layout.of(ids, ids, ROPE, method, dtype, segments=segments, starts=(0, 40, 90))
    out = attend(*leaves, layout=layout, backend=backend)
    copies = exact(leaves)
    docs, _ = documents(lengths, 4)
    alone = rule("document", docs)

    def sees(b, m, n):
        return alone(b, m, n) or (docs[0][m] >= 0 and n == anchors[docs[0][m]])

    expected = attention_by_distance(*copies, SPEEDS, lambda b, m, n: rel(m - n, m, n), sees)
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@pytest.mark.parametrize("mask", ["document", "anchor"])
@pytest.mark.parametrize(("dtype", "tolerance"), [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
def test_any_mask_equals_attention_by_definition(device, mask, dtype, tolerance):
    docs = [[0] * 3 + [1] * 80 + [2] * 50 + [-1] * 7, [0] * 60 + [1] * 40 + [0] * 40]
    leaves = leaves_on(device, dtype, 8, 140, 140, rows=2)
    method, rel = METHODS["string"]
    out = attend(*leaves, distance=method, doc_ids=torch.tensor(docs, device=device), mask=mask, backend="sdpa")
    copies = exact(leaves)
    expected = attention_by_distance(*copies, SPEEDS, lambda b, m, n: rel(m - n, m, n), rule(mask, docs))
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
@pytest.mark.parametrize("method", ["plain", "string"])
def test_chunks_on_a_growing_cache_equal_one_pass(device, backend, dtype, tolerance, method):
    needs(backend, device)
    made, rel = METHODS.get(method, (distance("plain"), lambda i, m, n: i))
    q, k, v = (x.detach() for x in leaves_on(device, dtype, 10, 60, 60, rows=2))
    maps = len({band.k_map for band in made.bands})
    cache, outs = KeyCache(1, 2, KV_HEADS, 60, WIDTH, q.device, n_maps=maps), []
    for start, stop in ((0, 30), (30, 59), (59, 60)):
        ids = torch.arange(stop, device=device)
        layout = Layout.of(ids[start:], ids, ROPE, made, dtype, starts=(0,), n_rotated=start)
        part = [x[:, :, start:stop] for x in (q, k, v)]
        with torch.no_grad():
            plan = plan_for(backend, layout, part[0], part[2])
            outs.append(attend_cached(*part, layer=0, plan=plan, cache=cache))
        cache.advance(stop - start)
    wide = [x.cpu().double() for x in (q, k, v)]
    expected = attention_by_distance(*wide, SPEEDS, lambda b, m, n: rel(m - n, m, n), rule("causal", None))
    torch.testing.assert_close(torch.cat(outs, dim=2).cpu().double(), expected, rtol=0, atol=tolerance)
