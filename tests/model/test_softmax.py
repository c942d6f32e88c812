"""Scalable softmax, temperature and sinks against the equations in float64 and against transformers."""

import dataclasses
import math

import pytest
import torch

from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder
from lab.model.layers import Scalable, Sink, Sliding, Temperature
from lab.positions import distance, frequencies
from tests.model.by_definition import (
    TINY,
    assert_close_with_gradients,
    drawn,
    tiny,
)
from tests.model.test_block import TOL, assert_by_definition
from tests.model.test_layers import ATTENDED, W, layers
from tests.refusals import refused

TEMPERATURE = Temperature(length=3)
TEMPERS = {"scalable": math.log, "temperature": lambda n: 1 + 0.1 * math.log(1 + n // 3), "sink": None}
SOFTMAXES = {"scalable": Scalable(), "temperature": TEMPERATURE, "sink": Sink()}
CASES = [("scalable", ("full",)), *((name, ("window", "nope", "part")) for name in SOFTMAXES)]


def config(name, pattern, **changes):
    kinds = None if pattern == ("full",) else layers(*pattern)
    return dataclasses.replace(TINY, layers=kinds, softmax=SOFTMAXES[name], **changes)


@pytest.mark.parametrize(
    ("backend", "name", "pattern"), [*(("auto", *case) for case in CASES), ("reference", *CASES[3])]
)
def test_logits_by_definition_whole_and_decoded(name, pattern, backend):
    decoder = tiny(config(name, pattern))
    decoder.backend = backend
    for block in decoder.blocks:
        block.attention.backend = backend
    tempers = {kind: TEMPERS[name] if name != "temperature" or kind == "nope" else None for kind in ATTENDED}
    assert_by_definition(decoder, [{**ATTENDED[kind], "temper": tempers[kind]} for kind in decoder.cfg.kinds])


@pytest.mark.parametrize(("name", "pattern"), CASES)
def test_packed_rows_equal_their_texts_and_gradients_those_of_the_definition(name, pattern):
    decoder, texts = tiny(config(name, pattern)), [drawn(9), drawn(3)]
    ends, row = torch.tensor([0, 9, 12], dtype=torch.int32), torch.cat([*texts, drawn(2)], dim=1)
    leaves = [decoder.blocks[0].attention.q.weight, decoder.blocks[1].attention.k.weight, decoder.embedding.weight]
    if name != "temperature":
        leaves[0] = decoder.blocks[0].attention.by_head
    packed = decoder(row, cu_seqlens=ends)[:, :12]
    for block in decoder.blocks:
        block.attention.backend = "reference"
    assert_close_with_gradients(packed, torch.cat([decoder(text) for text in texts], dim=1), leaves, TOL)


ANCHORED = Segments.from_lengths((1, 5, 3, 1, 4), 16, anchors=(-1, 0, 0, -1, 9))
LAYOUTS = {  # ids of keys, queries, what sees what
    "rows": (12, 12, {"starts": (0,)}),
    "decoding": (12, 1, {"starts": (0,)}),
    "documents": (16, 16, {"segments": Segments.from_lengths((5, 1, 7), 16), "starts": (0, 0, 0)}),
    "anchors": (16, 16, {"segments": ANCHORED, "starts": (0, 1, 6, 0, 1)}),
    "mask": (6, 6, {"mask": torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0)).tril() > 0.3}),
}


@pytest.mark.parametrize(
    "method", [distance("plain"), Sliding(window=W), distance("dca", train_len=8, chunk=3, parts="intra")]
)
@pytest.mark.parametrize(("n_k", "n_q", "more"), LAYOUTS.values(), ids=LAYOUTS)
def test_keys_are_counted_as_the_mask_shows_them(n_k, n_q, more, method):
    segments = more.get("segments")
    ids = torch.arange(n_k) if segments is None else segments.position_ids
    layout = Layout(ids[n_k - n_q :], ids, frequencies("rope", head_dim=8), method, torch.float64, **more)
    real = slice(0, n_q if segments is None else segments.n_real)  # padding sees nothing
    counted = layout.n_visible.expand(len(layout.seen()), -1)[:, real]
    assert counted.tolist() == layout.seen().sum(-1).clamp(min=1)[:, real].tolist()


@pytest.mark.parametrize("name", ["temperature", "sink"])
def test_attention_agrees_with_transformers(name):
    """Llama 4's layers without positions, and gpt-oss's with positions that do not turn."""
    pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "num_hidden_layers": 1,
    }
    still = torch.ones(1, 19, 3).double(), torch.zeros(1, 19, 3).double()
    if name == "temperature":
        from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4TextConfig

        more = {"no_rope_layers": [0], "attn_scale": 0.1, "floor_scale": 3, "use_qk_norm": False}
        peer = Llama4TextAttention(Llama4TextConfig(**sizes, **more, attn_implementation="eager"), 0)
    else:
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssConfig

        more = {"attention_bias": False, "layer_types": ["full_attention"]}
        peer = GptOssAttention(GptOssConfig(**sizes, **more, attn_implementation="eager"), 0)
    peer = peer.double().eval()
    own = config(name, ("nope",), n_layers=1, attention_width=None, qkv="plain")
    decoder = tiny(own)
    attention, names = decoder.blocks[0].attention, {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}
    state = {f"{theirs}.weight": getattr(attention, ours).weight for ours, theirs in names.items()}
    peer.load_state_dict(state | ({"sinks": attention.by_head} if name == "sink" else {}))
    x = torch.randn(1, 19, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hidden = torch.full((19, 19), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    layout = decoder.with_layouts(decoder.layout(torch.zeros(1, 19, dtype=torch.int64)))[0][1]
    with torch.no_grad():
        out = attention.attended(*attention.heads(x, x), layout, None)
        # Llama 4 computes its factor in float32
        expected = peer(x, position_embeddings=still, attention_mask=hidden)[0]
        torch.testing.assert_close(attention.out(out.transpose(1, 2).flatten(2)), expected, rtol=0, atol=1e-6)


def test_heads_begin_where_the_equations_say():
    for name, value in (("scalable", 0.168), ("sink", 0.0)):
        decoder = Decoder(config(name, ("full",)))
        assert [block.attention.by_head.tolist() for block in decoder.blocks] == [pytest.approx([value] * 4)] * 3
        plain = Decoder(TINY).state_dict()
        assert all(torch.equal(decoder.state_dict()[key], weight) for key, weight in plain.items()), "the same draws"


def test_what_does_not_fit_is_refused_by_name():
    with refused("softmax.method=temperature: is for layers of kind nope alone{}"):
        dataclasses.replace(TINY, softmax=Temperature())
    with refused("softmax.method=local: unknown; {}"):
        DecoderConfig(**{**dataclasses.asdict(TINY), "softmax": {"method": "local"}})
