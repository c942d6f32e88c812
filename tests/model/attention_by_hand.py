"""Attention logits and weights of a decoder's layers by definition: float64, one head and one query at a time.

Queries and keys are what the decoder's own forward pass projects; rotation is a complex product, rounding is done on
the digits of each number. None of it is the lab's.
"""

import math
import struct

import torch

from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance, frequencies

TINY = DecoderConfig(
    d_model=24,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    d_ff=40,
    vocab_size=61,
    tie_embeddings=False,
    theta=50.0,
    attention_width=32,
    qkv="bias",
)


def tiny(cfg=TINY, seed=0, std=0.4, rotary=None, method=None):
    """Make a float64 decoder with weights large enough for attention to be far from uniform."""
    rotary = rotary or frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
    decoder = Decoder(cfg, frequencies=rotary, distance=method or distance("plain")).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            mean = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std + mean)
    return decoder.eval()


def drawn(length, rows=1, vocab=TINY.vocab_size):
    """Draw token ids."""
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(length))


def projections(decoder, tokens, shift=0):
    """Record each layer's q (N, T, H) and k (K, T, H), not rotated, of one text whose first token is at `shift`."""
    found = {"q": [], "k": []}

    def record(kind):
        width = decoder.cfg.head_dim
        return lambda _, __, out: found[kind].append(out[0].unflatten(-1, (-1, width)).transpose(0, 1).double())

    hooks = [getattr(b.attention, kind).register_forward_hook(record(kind)) for b in decoder.blocks for kind in "qk"]
    with torch.no_grad():
        decoder(tokens, position_ids=torch.arange(tokens.shape[1]) + shift)
    for hook in hooks:
        hook.remove()
    return list(zip(found["q"], found["k"], strict=True))


def turned(x, places, speeds):
    """Turn the pairs (j, j + H/2) of (T, H) rows as complex numbers by place * speed."""
    angles = torch.tensor([[p * s for s in speeds] for p in places], dtype=torch.float64)
    return torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)


def eight_bits(number):
    """Round to bfloat16's eight significant bits, half to even; wider numbers become float32 first, as in torch."""
    fraction, exponent = math.frexp(struct.unpack("f", struct.pack("f", number))[0])
    return math.ldexp(round(fraction * 256), exponent - 8)


def rounded(z):
    """Round real and imaginary parts to bfloat16."""
    parts = [[complex(eight_bits(c.real), eight_bits(c.imag)) for c in row] for row in z.tolist()]
    return torch.tensor(parts, dtype=torch.complex128)


def logits_of(q, k, speeds, shift=0, bf16=False):
    """Give each head's causal logits under plain distance as lists: row m holds those of keys 0 .. m."""
    groups, scale, places = len(q) // len(k), math.sqrt(q.shape[-1]), range(shift, shift + q.shape[1])
    heads = []
    for head in range(len(q)):
        zq, zk = turned(q[head], places, speeds), turned(k[head // groups], places, speeds)
        if bf16:
            zq, zk = rounded(zq), rounded(zk)
        heads.append([((zq[m] * zk[: m + 1].conj()).sum(-1).real / scale).tolist() for m in range(len(zq))])
    return heads


def logits_by_distance(q, k, speeds, rel, factor=lambda m: 1.0):
    """Give each head's causal logits when query m stands rel(m, n) from key n, times factor(m)."""
    groups, scale, length = len(q) // len(k), math.sqrt(q.shape[-1]), q.shape[1]
    distances = torch.tensor([[float(rel(m, n)) for n in range(length)] for m in range(length)], dtype=torch.float64)
    angles = distances[..., None] * torch.tensor(speeds, dtype=torch.float64)
    turn, heads = torch.polar(torch.ones_like(angles), angles), []
    for head in range(len(q)):
        zq, zk = (torch.complex(*x.chunk(2, dim=-1)) for x in (q[head], k[head // groups]))
        logits = (zq[:, None] * zk[None].conj() * turn).sum(-1).real
        heads.append([[x * factor(m) / scale for x in row[: m + 1]] for m, row in enumerate(logits.tolist())])
    return heads


def softmax(row):
    """Turn a row of logits into weights."""
    powers = [math.exp(x - max(row)) for x in row]
    return [p / math.fsum(powers) for p in powers]


def entropy_of(row):
    """Compute -sum p ln p of a row of logits, in nats."""
    return -math.fsum(p * math.log(p) for p in softmax(row) if p > 0)
