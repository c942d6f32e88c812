import math
from dataclasses import dataclass

import pytest
import torch

from lab.errors import ConfigError, DataError, MissingPackage
from lab.model.attention import attend
from lab.model.attention.reference import REFERENCE_ROWS
from lab.positions import distance, frequencies
from tests.model.dense import assert_close_with_gradients, dense_attention, draw, rule

FLOAT64_TOL = 2e-12  # sums of some hundred products of order one, each right to 1e-16, and a softmax
FLOAT32_TOL = 3e-5  # the same at 6e-8
BACKENDS = ["reference", "sdpa", "auto"]


@dataclass(frozen=True)
class Setting:
    shape: tuple[int, ...]  # rows, heads, kv_heads, n_q, n_k, width
    mask: str = "causal"
    docs: list[list[int]] | None = None
    q_pos: list[list[int]] | None = None
    k_pos: list[list[int]] | None = None
    theta: float = 10000.0

    def truth(self, q, k, v):
        rows, _, _, n_q, n_k, _ = self.shape
        k_pos = self.k_pos or [list(range(n_k))] * rows
        q_pos = self.q_pos or [row[n_k - n_q :] for row in k_pos]
        k_pos, q_pos = (ids * rows if len(ids) == 1 else ids for ids in (k_pos, q_pos))
        return dense_attention(q, k, v, self.theta, q_pos, k_pos, rule(self.mask, self.docs))

    def attend(self, q, k, v, backend):
        def ids(rows):
            return None if rows is None else torch.tensor(rows[0] if len(rows) == 1 else rows)

        return attend(
            q,
            k,
            v,
            frequencies=frequencies("rope", head_dim=self.shape[-1], theta=self.theta),
            distance=distance("plain"),
            q_pos=ids(self.q_pos),
            k_pos=ids(self.k_pos),
            doc_ids=None if self.docs is None else torch.tensor(self.docs),
            mask=self.mask,
            backend=backend,
        )


DOCS = [[0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1, 3]]
PADDED = [[0, 0, 0, 1, 1, 1, -1, -1, -1], [5, -1, 7, 7, 7, 8, 9, 9, -1]]
SETTINGS = {
    "causal": Setting((2, 4, 4, 9, 9, 8)),
    "one_token": Setting((1, 2, 2, 1, 1, 4)),
    "two_per_kv_head": Setting((2, 4, 2, 9, 9, 8)),
    "one_kv_head": Setting((1, 6, 1, 7, 7, 4)),
    "theta_100": Setting((1, 2, 1, 9, 9, 8), theta=100.0),
    "more_rows_than_the_reference_holds": Setting((1, 1, 1, REFERENCE_ROWS + 3, REFERENCE_ROWS + 3, 4)),
    "decoding": Setting((2, 4, 2, 1, 9, 8)),
    "last_four_queries": Setting((2, 4, 2, 4, 9, 8)),
    "gapped_ids": Setting((2, 4, 2, 5, 5, 8), k_pos=[[0, 3, 4, 50, 2000]]),
    "gapped_ids_per_row": Setting((2, 2, 2, 4, 4, 4), k_pos=[[0, 1, 7, 9], [5, 6, 8, 1000]]),
    "queries_beyond_the_keys_ids": Setting((1, 2, 2, 3, 3, 4), q_pos=[[10, 11, 12]], k_pos=[[0, 1, 2]]),
    "decoding_with_ids": Setting((2, 2, 1, 1, 4, 4), q_pos=[[9], [77]], k_pos=[[0, 2, 5, 9], [0, 1, 2, 77]]),
    "causal_over_documents": Setting((2, 4, 2, 9, 9, 8), "causal", [[0, 0, 0, 1, 1, 2, 2, 2, 2]] * 2),
    "document": Setting((2, 4, 2, 9, 9, 8), "document", DOCS),
    "document_with_padding": Setting((2, 4, 2, 9, 9, 8), "document", PADDED),
    "document_of_interleaved_parts": Setting((1, 2, 2, 7, 7, 4), "document", [[0, 1, 0, 1, 1, 2, 0]]),
    "document_reset_ids": Setting((1, 4, 2, 6, 6, 4), "document", [[0, 0, 0, 1, 1, 2]], k_pos=[[0, 1, 2, 0, 1, 0]]),
    "document_decoding": Setting((2, 4, 2, 1, 9, 8), "document", DOCS),
    "document_last_three": Setting((2, 4, 2, 3, 9, 8), "document", DOCS),
    "anchor": Setting((2, 4, 2, 9, 9, 8), "anchor", DOCS),
    "anchor_reset_ids": Setting((1, 4, 2, 6, 6, 4), "anchor", [[0, 0, 0, 1, 1, 2]], k_pos=[[0, 1, 2, 0, 1, 0]]),
    "anchor_with_padding": Setting((1, 4, 2, 7, 7, 8), "anchor", [[0, 1, 1, 2, 2, -1, -1]]),
    "anchor_decoding": Setting((2, 4, 2, 1, 9, 8), "anchor", DOCS),
}
named = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@named
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_equal_attention_by_definition(setting, backend):
    for dtype, tolerance in ((torch.float64, FLOAT64_TOL), (torch.float32, FLOAT32_TOL)):
        q, k, v = draw(1, *setting.shape, dtype=dtype)
        out = setting.attend(q, k, v, backend)
        assert (out.dtype, out.shape) == (dtype, q.shape)
        torch.testing.assert_close(out.double(), setting.truth(q, k, v), rtol=0, atol=tolerance)


@named
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_gradients_equal_those_of_attention_by_definition(setting, backend):
    leaves = [x.requires_grad_() for x in draw(2, *setting.shape)]
    assert_close_with_gradients(setting.attend(*leaves, backend), setting.truth(*leaves), leaves, FLOAT64_TOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_tokens_by_hand(backend):
    # One pair, speed 1. The query at 1 is (1, 0); key 0 is (0, 1), a quarter turn ahead; key 1 is (1, 0).
    # Logits: cos(1 - 0 - pi/2) / sqrt 2 = sin(1) / sqrt 2 = 0.5950098 and cos(0) / sqrt 2 = 0.7071068.
    # Weight of key 0: 1 / (1 + exp(0.7071068 - 0.5950098)) = 1 / (1 + 1.1186213) = 0.4720051; values are 1 and 3.
    q = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]], dtype=torch.float64)
    v = torch.tensor([[[[1.0, 0.0], [3.0, 0.0]]]], dtype=torch.float64)
    out = attend(q, k, v, backend=backend)
    weight = 1 / (1 + math.exp((1 - math.sin(1)) / math.sqrt(2)))
    assert weight == pytest.approx(0.4720051, abs=1e-7)
    assert out[0, 0, :, 0].tolist() == pytest.approx([1.0, 3 - 2 * weight], abs=FLOAT64_TOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_query_head_h_reads_kv_head_h_over_the_group(backend):
    # all-zero queries weigh visible keys alike; kv head g holds the value 10 g + token, so the last token's mean of
    # tokens 0 .. 2 is 10 g + 1; six query heads on three kv heads read 0 0 1 1 2 2
    q, k = torch.zeros(1, 6, 3, 4), torch.randn(1, 3, 3, 4, generator=torch.Generator().manual_seed(0))
    v = (10.0 * torch.arange(3)[:, None] + torch.arange(3))[None, :, :, None].expand(1, 3, 3, 4)
    out = attend(q, k, v, backend=backend)
    assert out[0, :, 2, 0].tolist() == pytest.approx([1, 1, 11, 11, 21, 21], abs=FLOAT32_TOL)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", ["document", "anchor"])
def test_padding_rows_are_zeros_with_finite_gradients(backend, mask):
    q, k, v = (x.requires_grad_() for x in draw(4, 1, 2, 1, 6, 6, 4))
    docs = torch.tensor([[0, 0, 1, 1, -1, -1]])
    out = attend(q, k, v, doc_ids=docs, mask=mask, backend=backend)
    out.sum().backward()
    assert (out[:, :, 4:] == 0).all()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all()
        assert (x.grad[:, :, 4:] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 5], [8, 1], [3, 3, 3]], ids=str)
def test_chunks_of_queries_on_a_growing_cache_equal_one_pass(backend, chunks):
    q, k, v = draw(5, 2, 4, 2, 9, 9, 8)
    outs, stop = [], 0
    for n in chunks:
        part, stop = slice(stop, stop + n), stop + n
        outs.append(attend(q[:, :, part], k[:, :, :stop], v[:, :, :stop], backend=backend))
    expected = SETTINGS["two_per_kv_head"].truth(q, k, v)
    torch.testing.assert_close(torch.cat(outs, dim=2), expected, rtol=0, atol=FLOAT64_TOL)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_output_has_the_dtype_of_the_values_and_half_precision_is_near(backend):
    q, k, v = draw(6, 1, 4, 2, 9, 9, 8, dtype=torch.bfloat16)
    out = attend(q, k, v, backend=backend)
    assert out.dtype == torch.bfloat16
    expected = dense_attention(q, k, v, 10000.0, [range(9)], [range(9)], rule("causal", None))
    bfloat16_tol = 2**-7  # the output of order two is rounded once to 8 bits; angles and sums are float32
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=bfloat16_tol)


def cut(q, k, v, **changes):
    return [changes.get(name, x) for name, x in zip("qkv", (q, k, v), strict=True)]


Q, K, V = draw(7, 2, 4, 2, 5, 5, 8)
MISFITS = {
    "kv_heads_do_not_divide": (cut(Q[:, :3], K, V), {}),
    "values_differ_from_keys": (cut(Q, K, V[:, :, :4]), {}),
    "more_queries_than_keys": (cut(Q, K[:, :, :4], V[:, :, :4]), {}),
    "head_dim_differs": (cut(Q, K[..., :4], V[..., :4]), {}),
    "batch_differs": (cut(Q, K[:1], V[:1]), {}),
    "doc_ids_too_short": (cut(Q, K, V), {"doc_ids": torch.zeros(2, 4, dtype=torch.int64), "mask": "document"}),
    "k_pos_too_long": (cut(Q, K, V), {"k_pos": torch.arange(6)}),
}


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize(("tensors", "options"), MISFITS.values(), ids=MISFITS)
def test_shapes_that_do_not_fit_are_refused_in_one_line(tensors, options, backend):
    with pytest.raises(DataError) as caught:
        attend(*tensors, backend=backend, **options)
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_run_are_refused():
    with pytest.raises(ConfigError, match="^mask=full: unknown mask; use one of: causal, document, anchor$"):
        attend(Q, K, V, mask="full")
    with pytest.raises(ConfigError, match="^mask=anchor: needs doc_ids"):
        attend(Q, K, V, mask="anchor")
    with pytest.raises(ConfigError, match="fast: unknown attention backend; use one of: auto, reference, sdpa, "):
        attend(Q, K, V, backend="fast")


@pytest.mark.parametrize("backend", ["varlen", "flash", "xformers"])
def test_kernels_for_gpus_are_refused_on_a_cpu(backend):
    with pytest.raises((ConfigError, MissingPackage), match=rf"{backend}.*(CUDA device only|go without)"):
        attend(Q, K, V, backend=backend)
