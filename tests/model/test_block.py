"""Norms before, after or around attention and feed-forward, and the gate, against the equations in float64."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from lab.errors import ConfigError
from lab.model.huggingface import save_pretrained
from lab.model.layers import LayersConfig, Sink
from tests.model.by_definition import TINY, attention_by_distance, drawn, tiny

TOL = 1e-10  # float64, three layers of sums of some dozens of terms
SPEEDS = [50.0 ** (-2 * j / 8) for j in range(4)]  # of heads 8 wide at TINY's theta
FORMS = [(norm, gate) for norm in ("pre", "post", "sandwich") for gate in (False, True)]


def normed(x, weights, name):
    """Divide by the root mean square; nothing where the block has no such norm."""
    weight = weights.get(f"{name}.weight")
    return x if weight is None else x / (x.pow(2).mean(-1, keepdim=True) + TINY.norm_eps).sqrt() * weight


def block(x, own, speeds=SPEEDS, sees=lambda m, n: n <= m, rel=lambda m, n: m - n, temper=None):
    """Compute one block for rows (T, D) of one text, from its weights by name; query m sees key n at rel(m, n).

    Logits are multiplied by temper(keys seen) and what a head has learned, which without `temper` is its sink's logit.
    """
    by_head, n_seen = own.get("attention.by_head"), [sum(sees(m, n) for n in range(m + 1)) for m in range(len(x))]
    y = normed(x, own, "attention_norm")
    q, k, v = (
        F.linear(y, own[f"attention.{n}.weight"], own[f"attention.{n}.bias"]).view(len(x), -1, 8).transpose(0, 1)[None]
        for n in "qkv"
    )
    more = {"sinks": by_head}
    if temper is not None:
        q = q if by_head is None else q * by_head[:, None, None]
        more = {"factor": lambda m: temper(n_seen[m])}
    out = attention_by_distance(q, k, v, speeds, lambda b, m, n: rel(m, n), lambda b, m, n: sees(m, n), **more)[0]
    out = out.transpose(0, 1).flatten(1)
    if "attention.gate.weight" in own:
        out = out / (1 + torch.exp(-y @ own["attention.gate.weight"].T))
    x = x + normed(out @ own["attention.out.weight"].T, own, "attention_out_norm")
    y = normed(x, own, "feed_forward_norm")
    gate, up, down = (own[f"feed_forward.{name}.weight"].T for name in ("gate", "up", "out"))
    inner = y @ gate
    return x + normed((inner / (1 + torch.exp(-inner)) * (y @ up)) @ down, own, "feed_forward_out_norm")


def logits(decoder, tokens, attended=None):
    """Compute the logits (T, V) of one text by definition; `attended` are the layers' further arguments of `block`."""
    state = decoder.state_dict()
    x = state["embedding.weight"][tokens[0]]
    for layer in range(decoder.cfg.n_layers):
        begin = f"blocks.{layer}."
        own = {name.removeprefix(begin): w for name, w in state.items() if name.startswith(begin)}
        x = block(x, own, **(attended[layer] if attended else {}))
    return normed(x, {"norm.weight": state["norm.weight"]}, "norm") @ state["head.weight"].T


@pytest.mark.parametrize(("norm", "gate"), FORMS)
def test_logits_by_definition_whole_and_decoded(norm, gate):
    assert_by_definition(tiny(dataclasses.replace(TINY, norm=norm, gate=gate)))


def assert_by_definition(decoder, attended=None):
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


NOT_SAVED = [
    ({"norm": "post"}, "norm=post"),
    ({"gate": True}, "gate=true"),
    ({"layers": LayersConfig(pattern=("window", "nope"), window=3)}, r'layers.pattern=\["window", "nope"\]'),
    ({"softmax": Sink()}, "softmax.method=sink"),
]


@pytest.mark.parametrize(("changes", "field"), NOT_SAVED)
def test_what_no_family_has_is_not_saved(changes, field, tmp_path):
    with pytest.raises(ConfigError, match=f"model.{field}: no family"):
        save_pretrained(tiny(dataclasses.replace(TINY, qkv="plain", attention_width=24, **changes)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
