"""Blocks, and layers of different kinds, against the equations in float64 and against transformers."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from lab.counts import PositionCounts
from lab.model.attention import inspection
from lab.model.attention.inspection import LayerLogits, layer_inputs, token_scores
from lab.model.attention.layout import LayerInputs
from lab.model.config import DecoderConfig, LayersConfig, Sliding
from lab.model.decoder import Decoder
from lab.model.huggingface.config import SIZES
from lab.model.huggingface.pretrained import hugging_face_name
from lab.positions import distance, frequencies
from lab.testing import check_distance_method
from tests.model.by_definition import TINY, attention_by_distance, drawn, eight_bits, projections, tiny

TOL = 1e-10  # float64, three layers of sums of some dozens of terms
SPEEDS = [50.0 ** (-2 * j / 8) for j in range(4)]  # of heads 8 wide at TINY's theta
W = 4
ATTENDED = {  # of 4 pairs, floor(0.6 * 4) = 2 are rotated, those of the highest frequencies
    "full": {},
    "window": {"sees": lambda m, n: 0 <= m - n < W},
    "nope": {"speeds": [0.0] * 4},
    "part": {"speeds": [*SPEEDS[:2], 0.0, 0.0]},
}
PATTERNS = [("full",), ("window", "window", "nope"), ("part", "window", "full"), ("nope",)]


def normed(x, weights, name):
    """Divide by the root mean square."""
    return x / (x.pow(2).mean(-1, keepdim=True) + TINY.norm_eps).sqrt() * weights[f"{name}.weight"]


def block(x, own, speeds=SPEEDS, sees=lambda m, n: n <= m, rel=lambda m, n: m - n, head_dim=8):
    """Compute one block for rows (T, D) of one text, from its weights by name; query m sees key n at rel(m, n)."""
    y = normed(x, own, "attention_norm")
    q, k, v = (
        F.linear(y, own[f"attention.{n}.weight"], own.get(f"attention.{n}.bias")).view(len(x), -1, head_dim)
        for n in "qkv"
    )
    q, k, v = (projected.transpose(0, 1)[None] for projected in (q, k, v))
    out = attention_by_distance(q, k, v, speeds, lambda b, m, n: rel(m, n), lambda b, m, n: sees(m, n))[0]
    x = x + out.transpose(0, 1).flatten(1) @ own["attention.out.weight"].T
    y = normed(x, own, "feed_forward_norm")
    gate, up, down = (own[f"feed_forward.{name}.weight"].T for name in ("gate", "up", "out"))
    inner = y @ gate
    return x + (inner / (1 + torch.exp(-inner)) * (y @ up)) @ down


def logits(decoder, tokens, attended):
    """Compute the logits (T, V) of one text by definition; `attended` are the layers' further arguments of `block`."""
    weights = dict(decoder.named_parameters())
    x = weights["embedding.weight"][tokens[0]]
    for layer, further in enumerate(attended):
        x = block(x, {name.removeprefix(f"blocks.{layer}."): w for name, w in weights.items()}, **further)
    return normed(x, weights, "norm") @ weights["head.weight"].T


def assert_by_definition(decoder, attended):
    """Compare the logits of a whole text, of one decoded in parts, and of its last token alone."""
    tokens = drawn(11)
    expected = logits(decoder, tokens, attended)
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens)[0], expected, rtol=0, atol=TOL)
        cache = decoder.new_cache(1, 11)
        parts = [decoder(tokens[:, a:b], cache=cache)[0] for a, b in ((0, 6), (6, 7), (7, 11))]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=TOL)
        last = decoder(tokens, last_only=True)
        torch.testing.assert_close(last[0, -1], expected[-1], rtol=0, atol=TOL)


def layers(*pattern):
    near, part = W if "window" in pattern else None, 0.6 if "part" in pattern else None
    return LayersConfig(pattern=pattern, window=near, fraction=part)


@pytest.mark.parametrize(("pattern", "backend"), [*((kinds, "auto") for kinds in PATTERNS), (PATTERNS[2], "reference")])
def test_logits_by_definition_whole_and_decoded(pattern, backend):
    kinds = None if pattern == ("full",) else layers(*pattern)
    decoder = tiny(dataclasses.replace(TINY, layers=kinds), backend=backend)
    assert_by_definition(decoder, [ATTENDED[pattern[layer % len(pattern)]] for layer in range(TINY.n_layers)])


def test_distance_methods_change_full_and_part_layers_alone():
    """Self-Extend: beyond 3 tokens distances of groups of 2, m // 2 - n // 2 + 3 - 3 // 2."""
    grouped = lambda m, n: m - n if m - n < 3 else m // 2 - n // 2 + 2  # noqa: E731
    cfg = dataclasses.replace(TINY, layers=layers("window", "part", "full", "nope"), n_layers=4)
    decoder = tiny(cfg, method=distance("self_extend", group=2, window=3))
    changed = {"full": {"rel": grouped}, "part": {**ATTENDED["part"], "rel": grouped}}
    assert_by_definition(decoder, [{**ATTENDED, **changed}[kind] for kind in cfg.kinds])


@pytest.mark.parametrize("window", [1, 2, 13, 89, 90])
def test_a_sliding_window_is_a_distance_method(window):
    check_distance_method(Sliding, window=window)


def test_windows_and_layers_without_positions_agree_with_transformers():
    """SmolLM3 has both: no_rope_layers is 0 where nothing is rotated."""
    transformers = pytest.importorskip("transformers")
    kinds, own = {"window": "sliding_attention"}, layers("window", "full", "nope")
    cfg = DecoderConfig(24, 4, 4, 2, 40, 61, tie_embeddings=False, norm_eps=1e-6, layers=own)
    own = {theirs: getattr(cfg, ours) for ours, theirs in SIZES.items()}
    own |= {"rope_theta": cfg.theta, "use_sliding_window": True, "sliding_window": W, "pad_token_id": 0}
    own["no_rope_layers"] = [int(kind != "nope") for kind in cfg.kinds]
    own["layer_types"] = [kinds.get(kind, "full_attention") for kind in cfg.kinds]
    peer = transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**own)).double().eval()
    decoder = Decoder(cfg).double().eval()
    state = peer.state_dict()
    with torch.no_grad():
        for tensor in state.values():
            tensor.normal_(std=0.4, generator=torch.Generator().manual_seed(tensor.numel()))
        decoder.load_state_dict({name: state[hugging_face_name(name)] for name in decoder.state_dict()})
        tokens = drawn(15, rows=2)
        # transformers computes its rotary tables in float32
        torch.testing.assert_close(decoder(tokens), peer(tokens).logits, rtol=0, atol=1e-4)


def test_part_keeps_the_frequencies_that_transformers_calls_proportional():
    transformers = pytest.importorskip("transformers")
    for fraction, head_dim in ((0.75, 64), (0.25, 8), (0.3, 10)):
        rope = {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": fraction}
        config = transformers.LlamaConfig(head_dim=head_dim, rope_parameters=rope)
        expected = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")[0]
        kinds = LayersConfig(pattern=("part",), fraction=fraction)
        own, _ = kinds.methods("part", frequencies("rope", head_dim=head_dim, theta=500.0), distance("plain"))
        torch.testing.assert_close(own.inv_freq.float(), expected)


def test_f_by_kind_of_layer():
    """Of lengths 4 and 2: 6 tokens, 4 neighbours, 2 pairs at 2 and 1 at 3, of which a window of 2 has the first two."""
    counts, local = PositionCounts(5), PositionCounts(5)
    counts.encoded = LayersConfig(pattern=("window", "full", "nope"), window=2).encoded(5)
    counts.add_segments([4, 2])
    assert counts.frequency().tolist() == counts.frequency("full").tolist() == [6, 4, 2, 1, 0]
    assert counts.frequency("window").tolist() == [6, 4, 0, 0, 0]
    assert counts.frequency("nope").tolist() == [0] * 5
    local.encoded = LayersConfig(pattern=("window", "nope"), window=2).encoded(5)
    local.add_segments([4, 2])
    assert (local + local).frequency().tolist() == [12, 8, 0, 0, 0], "of the kind that encodes most"
    # STRING's map by hand: distances from 2 on become smaller by 1
    moved = PositionCounts(5, lambda q, k: (q[:, None] - k) - 1.0 * (q[:, None] - k >= 2))
    moved.encoded = counts.encoded
    moved.add_segments([4, 2])
    assert (moved.frequency().tolist(), moved.frequency("window").tolist()) == ([6, 6, 1, 0, 0], [6, 4, 0, 0, 0])


def test_hidden_pairs_are_not_counted():
    intra = distance("dca", train_len=8, chunk=5, parts="intra")
    rows = lambda q, k: intra.rel_pos(torch.from_numpy(q), torch.from_numpy(k)).numpy()  # noqa: E731
    hidden, chunks = PositionCounts(12, rows), PositionCounts(12)
    hidden.add_segments([12, 7, 3])
    chunks.add_segments([5, 5, 2, 5, 2, 3])  # each segment cut at multiples of 5
    assert hidden.frequency().tolist() == chunks.frequency().tolist()


# What measurements see of a decoder is what its attention computes

EXACT_TOL = 1e-12  # some dozens of float64 products of order ten
TINY_HEAD = DecoderConfig(4, 1, 1, 1, 4, 61, tie_embeddings=False, theta=50.0)


def test_normed_queries_and_keys_are_seen():
    """Qwen3's: w x / sqrt(mean(x^2) + eps) over each head."""
    cfg = dataclasses.replace(TINY, qkv="norm")
    decoder, tokens = tiny(cfg), drawn(7)
    for inputs, parts in zip(layer_inputs(decoder, tokens), projections(decoder, tokens), strict=True):
        attention = decoder.blocks[inputs.layer].attention
        norms, found = (attention.q_norm, attention.k_norm), (inputs.q_BNTH[0], inputs.k_BNTH[0])
        for seen, x, norm in zip(found, parts, norms, strict=True):
            expected = norm.weight.detach() * x / (x.square().mean(-1, keepdim=True) + cfg.norm_eps).sqrt()
            torch.testing.assert_close(seen, expected, rtol=0, atol=EXACT_TOL)


def test_the_factor_is_in_the_query_before_it_is_rounded():
    # at position 3, of a model trained on 2 tokens, the factor is ln 4 / ln 2 = 2: exact in bfloat16; at 2 it is
    # ln 3 / ln 2 = 1.58496..., which times 1 + 2^-7 is 1.59734..., in eight bits 204/128 = 1.59375
    rotary = frequencies("entropy_abf", head_dim=4, train_len=2, exempt_layers=0)
    decoder = tiny(TINY_HEAD, rotary=rotary)
    inputs = next(layer_inputs(decoder, drawn(4)))
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    x[..., 1] = 1 + 2**-7  # the slow pair, 1/707 radian per token
    logits = LayerLogits(LayerInputs(0, x, x, inputs.layout), torch.bfloat16).block(slice(0, 4), slice(0, 1))
    turned = [(x[0, 0, 0, 1].item() * f, m * 500_000**-0.5) for m, f in ((2, 1.5849625007211562), (3, 2.0))]
    expected = [eight_bits(a * math.cos(t)) * (1 + 2**-7) / 2 for a, t in turned]
    assert logits[0, 0, 2:, 0].tolist() == pytest.approx(expected, abs=1e-15)
    assert expected[0] == 1.59375 * (1 + 2**-7) / 2


@pytest.mark.parametrize("rows", [1, 7, 10_000], ids="head_rows_{}".format)
@pytest.mark.parametrize("method", ["plain", "string"])
def test_the_logit_of_each_target(rows, method, monkeypatch):
    monkeypatch.setattr(inspection, "BLOCK_LOGITS", rows * TINY.d_model)
    decoder = tiny(method=distance(method, **({"shift": 9, "window": 3} if method == "string" else {})))
    tokens, targets = drawn(23, rows=2), drawn(23, rows=3)[1:]
    targets[:, ::5] = -100
    with torch.no_grad():
        logits = decoder(tokens)
    expected = torch.zeros(2, 23, dtype=torch.float64)
    for row, place in (targets >= 0).nonzero().tolist():
        expected[row, place] = logits[row, place, targets[row, place]]
    found = token_scores(decoder, tokens, targets)[2]
    torch.testing.assert_close(found, expected, rtol=0, atol=10 * EXACT_TOL)
    assert not found.requires_grad


def test_pairs_beyond_a_window_are_hidden():
    layers = LayersConfig(pattern=("window", "full"), window=3)
    for inputs in layer_inputs(tiny(dataclasses.replace(TINY, layers=layers)), drawn(6)):
        hidden = LayerLogits(inputs).block(slice(0, 6))[0, 0].isneginf()
        window = 3 if inputs.layer % 2 == 0 else 6
        assert hidden.tolist() == [[not m - window < n <= m for n in range(6)] for m in range(6)]
