"""Blocks against the equations in float64."""

import torch
from torch.nn import functional as F

from tests.model.by_definition import TINY, attention_by_distance, drawn, tiny

TOL = 1e-10  # float64, three layers of sums of some dozens of terms
SPEEDS = [50.0 ** (-2 * j / 8) for j in range(4)]  # of heads 8 wide at TINY's theta


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


def logits(decoder, tokens, attended=None):
    """Compute the logits (T, V) of one text by definition; `attended` are the layers' further arguments of `block`."""
    state = decoder.state_dict()
    x = state["embedding.weight"][tokens[0]]
    for layer in range(decoder.cfg.n_layers):
        begin = f"blocks.{layer}."
        own = {name.removeprefix(begin): w for name, w in state.items() if name.startswith(begin)}
        x = block(x, own, **(attended[layer] if attended else {}))
    return normed(x, {"norm.weight": state["norm.weight"]}, "norm") @ state["head.weight"].T


def test_logits_by_definition_whole_and_decoded():
    assert_by_definition(tiny(TINY))


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
