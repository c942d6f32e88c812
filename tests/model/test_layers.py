"""Layers of different kinds, against the equations in float64 and against transformers."""

import dataclasses

import pytest
import torch

from lab.counts import PositionCounts
from lab.model.config import DecoderConfig, LayersConfig, Sliding
from lab.model.decoder import Decoder
from lab.model.huggingface.config import SIZES
from lab.model.huggingface.pretrained import hugging_face_name
from lab.positions import distance, frequencies
from lab.testing import check_distance_method
from tests.model.by_definition import TINY, drawn, tiny
from tests.model.test_block import SPEEDS, assert_by_definition
from tests.refusals import refused

W = 4
ATTENDED = {  # of 4 pairs, floor(0.6 * 4) = 2 are rotated, those of the highest frequencies
    "full": {},
    "window": {"sees": lambda m, n: 0 <= m - n < W},
    "nope": {"speeds": [0.0] * 4},
    "part": {"speeds": [*SPEEDS[:2], 0.0, 0.0]},
}
PATTERNS = [("window", "window", "nope"), ("part", "window", "full"), ("nope",)]


def layers(*pattern):
    near, part = W if "window" in pattern else None, 0.6 if "part" in pattern else None
    return LayersConfig(pattern=pattern, window=near, fraction=part)


@pytest.mark.parametrize(("pattern", "backend"), [*((kinds, "auto") for kinds in PATTERNS), (PATTERNS[1], "reference")])
def test_logits_by_definition_whole_and_decoded(pattern, backend):
    decoder = tiny(dataclasses.replace(TINY, layers=layers(*pattern)))
    for block in decoder.blocks:
        block.attention.backend = backend
    decoder.backend = backend
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
    config = transformers.SmolLM3Config(
        **{theirs: getattr(cfg, ours) for ours, theirs in SIZES.items()},
        rope_theta=cfg.theta,
        use_sliding_window=True,
        sliding_window=W,
        pad_token_id=0,
        no_rope_layers=[int(kind != "nope") for kind in cfg.kinds],
        layer_types=[kinds.get(kind, "full_attention") for kind in cfg.kinds],
    )
    peer = transformers.SmolLM3ForCausalLM(config).double().eval()
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
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    for fraction, head_dim in ((0.75, 64), (0.25, 8), (0.3, 10)):
        rope = {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": fraction}
        config = transformers.LlamaConfig(head_dim=head_dim, rope_parameters=rope)
        expected = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")[0]
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


def test_operations_by_hand():
    # window 8, half of the layers see 2 tokens: of 8 tokens these see 2 - 2^2 / 16 = 1.75 on average, the others 4
    half = LayersConfig(pattern=("window", "full"), window=2)
    cfg = DecoderConfig(16, 2, 4, 2, 24, 23, tie_embeddings=False, layers=half)
    assert cfg.flops_per_token_causal(8) == 6 * cfg.n_matrix_parameters + 12 * 16 * (1.75 + 4)
    assert cfg.flops_per_token_full(8) == 6 * cfg.n_matrix_parameters + 12 * 16 * (2 + 8)
    assert cfg.n_parameters() == dataclasses.replace(cfg, layers=None).n_parameters()


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"pattern": ["full"]}, ['layers.pattern=["full"]: must have a type besides full']),
        ({"pattern": []}, ["layers.pattern=[]: must have a type besides full"]),
        ({"pattern": ["local"], "window": 3}, ["layers.pattern.0=local: must be one of 'full'"]),
        ({"pattern": ["window"]}, ["layers.window=None: must be set for window layers"]),
        ({"pattern": ["nope"], "window": 3}, ["layers.window=3: would be ignored without window layers"]),
        ({"pattern": ["part"], "fraction": 1.0}, ["layers.fraction=1.0: must be < 1"]),
        ({"pattern": ["nope"] * 4}, ['layers.pattern=["nope", "nope", "nope", "nope"]: must have at most n_layers=3']),
    ],
)
def test_kinds_that_do_not_fit_are_refused_by_name(settings, rules):
    with refused(*(f"{rule}{{}}" for rule in rules)):
        DecoderConfig(**{**dataclasses.asdict(TINY), "layers": settings})
