"""The decoder's sizes, the weights that it draws, and its linear layers."""

import dataclasses

import pytest
import torch
from torch import nn

from lab.core.errors import ConfigError, DataError
from lab.model import devices
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig, LayersConfig
from lab.model.decoder import Decoder
from lab.model.devices import Linear, peak_flops, utilisation
from tests.refusals import refused

TINY = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False, attention_width=40, qkv="bias")


def test_counts_by_hand():
    # head_dim 40 / 4 = 10, key heads 2 * 10 = 20 wide. Matrices of a block: q and out 2 * 16 * 40 = 1280, k and v
    # 2 * 16 * 20 = 640, feed-forward 3 * 16 * 24 = 1152; sum 3072. Two blocks and the head: 6144 + 23 * 16 = 6512.
    # Norms 5 * 16 = 80, biases 2 * (40 + 20 + 20) = 160, embedding 368.
    assert (TINY.head_dim, TINY.kv_width, TINY.n_matrix_parameters) == (10, 20, 6512)
    assert TINY.n_parameters() == 6512 + 80 + 160 + 368
    assert dataclasses.replace(TINY, tie_embeddings=True).n_parameters() == 6512 + 80 + 160
    # a pair costs 12 operations per layer and unit of width: 12 * 2 * 40 = 960
    assert TINY.flops_per_token(3.0) == 6 * 6512 + 960 * 3
    # window 8, half of the layers see 2 tokens: of 8 tokens these see 2 - 2^2 / 16 = 1.75 on average, the others 4
    half = dataclasses.replace(TINY, layers=LayersConfig(pattern=("window", "full"), window=2))
    assert half.flops_per_token_causal(8) == 6 * 6512 + 12 * 40 * (1.75 + 4)
    assert half.flops_per_token_full(8) == 6 * 6512 + 12 * 40 * (2 + 8)
    assert half.n_parameters() == TINY.n_parameters()


REFUSED = {  # by the fault, what is changed
    "n_heads=4: must divide attention_width=42; change": {"attention_width": 42},
    "n_heads=3: must divide d_model=16; change": {"attention_width": None, "n_heads": 3},
    "n_heads=4: head_dim 5 must be even": {"attention_width": 20},
    "n_kv_heads=3: must divide n_heads=4; change": {"n_kv_heads": 3},
    'layers.pattern=["full"]: must have a type besides full': {"layers": {"pattern": ["full"]}},
    "layers.pattern=[]: must have a type besides full": {"layers": {"pattern": []}},
    "layers.pattern.0=local: must be one of 'full'": {"layers": {"pattern": ["local"], "window": 3}},
    "layers.window=None: must be set for window layers": {"layers": {"pattern": ["window"]}},
    "layers.window=3: would be ignored without window layers": {"layers": {"pattern": ["nope"], "window": 3}},
    "layers.fraction=1.0: must be < 1": {"layers": {"pattern": ["part"], "fraction": 1.0}},
    'layers.pattern=["nope", "nope", "nope"]: must have at most n_layers=2': {"layers": {"pattern": ["nope"] * 3}},
}


@pytest.mark.parametrize("rule", REFUSED)
def test_sizes_that_make_no_decoder_are_refused(rule):
    with refused(f"{rule}{{}}", error=ConfigError):
        dataclasses.replace(TINY, **REFUSED[rule])


def test_peaks_are_those_of_data_sheets_and_unknown_hardware_has_none():
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12  # dense bf16 operations per second
    assert peak_flops("NVIDIA RTX A1000 Laptop GPU") is peak_flops(None) is None
    # 8e9 operations per token at 50,000 tokens per second: 4e14 of 2 * 1e15 is a fifth
    assert utilisation(8e9, 50_000, 1e15, 2) == pytest.approx(0.2)
    assert utilisation(8e9, 50_000, None, 2) is None


SPREAD = {  # sqrt(2 / (5 * 160)) = 0.05; residual outputs 1 / (sqrt(fan_in) * 4 layers): fan_in 160 and 400
    **dict.fromkeys(["head.weight", "blocks.1.attention.q.weight", "blocks.3.feed_forward.up.weight"], 0.05),
    "blocks.0.attention.out.weight": 0.25 / 160**0.5,
    "blocks.3.feed_forward.out.weight": 0.0125,
    "embedding.weight": 1.0,
}


def test_weights_are_drawn_with_the_published_spread():
    cfg = DecoderConfig(160, 4, 4, 4, 400, 300, tie_embeddings=False, embedding_std=1.0)
    weights = Decoder(cfg).state_dict()
    for name, std in SPREAD.items():
        relative_error = 5 / (2 * weights[name].numel()) ** 0.5  # five standard errors of a standard deviation
        assert float(weights[name].std()) == pytest.approx(std, rel=relative_error), name
        assert abs(float(weights[name].mean())) < 5 * std / weights[name].numel() ** 0.5


def test_segments_that_do_not_describe_the_tokens_are_refused():
    model, tokens = Decoder(TINY), torch.zeros(1, 8, dtype=torch.int64)
    with pytest.raises(DataError, match="^cu_seqlens="):
        model(tokens, torch.tensor([0, 5, 9], dtype=torch.int32))
    with pytest.raises(DataError, match="must match tokens"):
        model(tokens, segments=Segments.from_lengths([4], 7))
    with pytest.raises(DataError, match="no cache"):
        model(tokens, segments=Segments.from_lengths([8], 8), cache=model.new_cache(1, 8))


SUM_ERROR = 1e-5  # of a sum of 300 products in float32


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("needs_input", [False, True], ids=["", "input"])
def test_onednn_computes_the_layer_and_its_gradients(bias, needs_input, monkeypatch):
    monkeypatch.setattr(devices, "onednn", lambda: torch.ops.mkldnn._linear_pointwise)
    layer, x, grad = Linear(128, 96, bias=bias), draw(2, 150, 128).requires_grad_(needs_input), draw(2, 150, 96, seed=5)
    out = layer(x)
    assert "OneDnnLinear" in out.grad_fn.name()
    out.backward(grad)
    exact, wide = nn.Linear(128, 96, bias=bias).double(), x.detach().double().requires_grad_()
    exact.load_state_dict(layer.state_dict())
    expected = exact(wide)
    expected.backward(grad.double())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=SUM_ERROR)
    assert (x.grad is not None) == needs_input
    a, b = draw(80, 60), draw(40, 60, seed=3)
    torch.testing.assert_close(devices.multiply(a, b.T).double(), a.double() @ b.double().T, rtol=0, atol=SUM_ERROR)
    squares = a.double().T @ a.double()
    torch.testing.assert_close(devices.multiply(a.T, a).double(), squares, rtol=0, atol=10 * SUM_ERROR)
    for ours, theirs in zip([x, *layer.parameters()], [wide, *exact.parameters()], strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=10 * SUM_ERROR)
