import pytest
import torch

from lab.core.errors import ConfigError, DataError, MissingPackage
from lab.model.attention import attend
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.by_definition import METHODS, attention_by_distance, draw, rule

BACKENDS = ["reference", "sdpa", "auto"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["plain", "string"])
def test_autocast_leaves_attention_in_float32(backend, name):
    q, k, v = draw(5, 1, 2, 1, 9, 9, 8, torch.float32)
    settings, rel = METHODS[name]
    speeds = frequencies("rope", head_dim=8).inv_freq
    truth = attention_by_distance(q, k, v, speeds, lambda b, m, n: rel(m - n, m, n), rule("causal", None))
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, distance=distance(**settings), backend=backend)
    torch.testing.assert_close(out.double(), truth, rtol=0, atol=2e-6)


Q, K, V = draw(7, 2, 4, 2, 5, 5, 8)
MISFITS = {
    "kv_heads_do_not_divide": ((Q[:, :3], K, V), {}),
    "values_differ_from_keys": ((Q, K, V[:, :, :4]), {}),
    "more_queries_than_keys": ((Q, K[:, :, :4], V[:, :, :4]), {}),
    "head_dim_differs": ((Q, K[..., :4], V[..., :4]), {}),
    "batch_differs": ((Q, K[:1], V[:1]), {}),
    "doc_ids_too_short": ((Q, K, V), {"doc_ids": torch.zeros(2, 4, dtype=torch.int64), "mask": "document"}),
    "k_pos_too_long": ((Q, K, V), {"k_pos": torch.arange(6)}),
}


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize(("tensors", "options"), MISFITS.values(), ids=MISFITS)
def test_shapes_that_do_not_fit_are_refused_in_one_line(tensors, options, backend):
    with pytest.raises(DataError) as caught:
        attend(*tensors, backend=backend, **options)
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_run_are_refused():
    with pytest.raises(ConfigError, match="^mask=full: .* causal, document, anchor$"):
        attend(Q, K, V, mask="full")
    with pytest.raises(ConfigError, match="^mask=anchor: needs doc_ids"):
        attend(Q, K, V, mask="anchor")
    with pytest.raises(ConfigError, match="fast: .* auto, reference, sdpa, "):
        attend(Q, K, V, backend="fast")
    for backend in ("varlen", "flash", "xformers"):  # kernels of GPUs
        with pytest.raises((ConfigError, MissingPackage), match=rf"{backend}.*(CUDA device only|go without)"):
            attend(Q, K, V, backend=backend)


@pytest.mark.parametrize(("lengths", "padding", "calls"), [((4, 4, 4), 0, 1), ((4, 4, 4), 1, 3), ((4, 8), 0, 2)])
def test_segments_of_one_length_that_fill_the_row_are_one_call(lengths, padding, calls, monkeypatch):
    made, functional = [], torch.nn.functional
    own = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *a, **b: made.append(1) or own(*a, **b))
    q, ends = torch.randn(1, 2, sum(lengths) + padding, 8), torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    CAUSAL_KERNELS["sdpa"](q, q, q, Segments.from_cu_seqlens(ends, sum(lengths) + padding))
    assert len(made) == calls
