import pytest
import torch

from lab.errors import ConfigError, DataError, MissingPackage
from lab.model.attention import attend
from tests.model.dense import draw

FLOAT64_TOL = 2e-12  # sums of some hundred products of order one, each right to 1e-16, and a softmax
FLOAT32_TOL = 3e-5  # the same at 6e-8
BACKENDS = ["reference", "sdpa", "auto"]


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
