"""Attention by definition, written apart from the lab: float64, one head and one query at a time, complex numbers.

Here are every distance method's equation, layouts of rows to attend under, and a small decoder's logits by hand: its
queries and keys are what its own forward pass projects, and rounding is done on the digits of each number.
"""

import math
import struct
from dataclasses import dataclass

import torch

from lab.model.attention.attend import attend, attend_layout
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance, frequencies


def rule(mask, docs):
    """Write a mask as a function of (row, query index, key index); docs are lists, negative for padding."""

    def sees(b, m, n):
        if n > m or (docs and (docs[b][m] < 0 or docs[b][n] < 0)):
            return False
        if mask == "causal":
            return True
        return docs[b][m] == docs[b][n] or (mask == "anchor" and docs[b][n] == 0)

    return sees


def draw(seed, rows, heads, kv_heads, n_q, n_k, width, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, n_q, width), (rows, kv_heads, n_k, width), (rows, kv_heads, n_k, width)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def logits_of_head(q, k, speeds, distances):
    """Compute Re(q_m conj(k_n) exp(i distance speed)) / sqrt(H) for (Tq, H), (Tk, H) and distances (Tq, Tk)."""
    zq, zk = (torch.complex(*x.double().chunk(2, dim=-1)) for x in (q, k))
    angles = torch.tensor(distances, dtype=torch.float64)[..., None] * torch.as_tensor(speeds, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angles), angles)
    return (zq[:, None] * zk[None].conj() * turn).sum(-1).real / math.sqrt(q.shape[-1])


def attention_by_distance(q, k, v, speeds, rel, sees, factor=lambda m: 1.0):
    """Attend with the logits at the distances rel(b, m, n), times factor(m), pair by pair in float64.

    `rel`, `sees` and `factor` take query and key indices among the keys' tokens; query m of the call is Tk - Tq + m.
    A distance of None hides the pair.
    """
    n_k = k.shape[2]
    places = range(n_k - q.shape[2], n_k)
    scale = torch.tensor([float(factor(m)) for m in places], dtype=torch.float64)[:, None]
    out = []
    for b in range(len(q)):
        pairs = [[rel(b, m, n) if sees(b, m, n) else None for n in range(n_k)] for m in places]
        seen = torch.tensor([[distance is not None for distance in row] for row in pairs])
        distances = [[float(distance or 0) for distance in row] for row in pairs]
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            logits = logits_of_head(q[b, h], k[b, g], speeds, distances) * scale
            weights = torch.where(seen, torch.exp(logits - logits.max()), 0.0)
            total = weights.sum(-1, keepdim=True)
            out.append(torch.where(total > 0, weights / total, 0.0) @ v[b, g].double())
    return torch.stack(out).view(q.shape)


def assert_with_gradients(out, truth, leaves, tolerance):
    """Compare outputs, and gradients under a random weight on every output to ten times the tolerance."""
    torch.testing.assert_close(out, truth, rtol=0, atol=tolerance)
    weight = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got, expected = (torch.autograd.grad((x * weight).sum(), leaves) for x in (out, truth))
    for name, x, y in zip("qkvb"[: len(leaves)], got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=10 * tolerance, msg=lambda text, name=name: f"{name}: {text}")


def string(i, m, n, s, w):
    return i if i < s else i - s + w


def dca(i, m, n, c, s, w):
    r, back = m % s, m // s - n // s
    q = r if back == 0 else (s + r if r < w else c - 1) if back == 1 else c - 1
    return q - n % s


def self_extend(i, m, n, g, w):
    return i if i < w else m // g - n // g + w - w // g


INTER = {"method": "dca", "chunk": 4, "train_len": 9, "parts": "intra_inter"}
LEAKY = {"method": "leaky_rerope", "window": 3, "leak": 2.5}
METHODS = {  # the lab's parameters, and the equation as a function of i = m - n, m and n
    "plain": ({"method": "plain"}, lambda i, m, n: i),
    "string": ({"method": "string", "shift": 5, "window": 2}, lambda i, m, n: string(i, m, n, 5, 2)),
    "string_w0": ({"method": "string", "shift": 7, "window": 0}, lambda i, m, n: string(i, m, n, 7, 0)),
    "string_shift1": ({"method": "string", "shift": 1, "window": 1}, lambda i, m, n: string(i, m, n, 1, 1)),
    "dca": ({"method": "dca", "chunk": 6, "train_len": 10, "window": 4}, lambda i, m, n: dca(i, m, n, 10, 6, 4)),
    "dca_window2": ({"method": "dca", "chunk": 4, "train_len": 9, "window": 2}, lambda i, m, n: dca(i, m, n, 9, 4, 2)),
    "dca_chunk1": ({"method": "dca", "chunk": 1, "train_len": 1}, lambda i, m, n: dca(i, m, n, 1, 1, 0)),
    "dca_inter": (INTER, lambda i, m, n: dca(i, m, n, 9, 4, 0)),
    "self_extend": ({"method": "self_extend", "group": 3, "window": 4}, lambda i, m, n: self_extend(i, m, n, 3, 4)),
    "self_extend_w0": ({"method": "self_extend", "group": 2, "window": 0}, lambda i, m, n: self_extend(i, m, n, 2, 0)),
    "rerope": ({"method": "rerope", "window": 4}, lambda i, m, n: min(i, 4)),
    "rerope_w0": ({"method": "rerope", "window": 0}, lambda i, m, n: 0),
    "leaky_rerope": (LEAKY, lambda i, m, n: i if i < 3 else 3 + (i - 3) / 2.5),
}
ONCE = {name: case for name, case in METHODS.items() if name == case[0]["method"]}  # each at ordinary parameters


@dataclass(frozen=True)
class Case:
    """Rows of tokens: how many queries and keys, their ids, documents or segments, and what sees what."""

    n_q: int
    n_k: int
    rows: int = 1
    ids: tuple | None = None
    mask: str = "causal"
    docs: tuple | None = None
    lengths: tuple | None = None
    anchors: tuple | None = None
    starts: tuple | None = None

    def k_ids(self):
        if self.ids is not None:
            return [list(row) for row in self.ids]
        if self.lengths is None:
            return [list(range(self.n_k))] * self.rows
        starts = self.starts or (0,) * len(self.lengths)
        ids = [i for n, start in zip(self.lengths, starts, strict=True) for i in range(start, start + n)]
        return [ids + list(range(self.n_k - len(ids)))]

    def sees(self):
        if self.lengths is None:
            return rule(self.mask, self.docs and [list(row) for row in self.docs])
        runs = [run for run, length in enumerate(self.lengths) for _ in range(length)]

        def sees(b, m, n):
            if n > m or max(m, n) >= len(runs):
                return False
            return runs[m] == runs[n] or (self.anchors is not None and self.anchors[runs[m]] == n)

        return sees

    def truth(self, q, k, v, speeds, rel, factor=lambda m: 1.0):
        """Attend pair by pair in float64; `factor` is of a query's id."""
        ids = self.k_ids()
        whole = ids[0]
        return attention_by_distance(
            *(q, k, v, speeds),
            lambda b, m, n: rel(ids[b][m] - ids[b][n], ids[b][m], ids[b][n]),
            self.sees(),
            lambda m: factor(whole[m]),
        )

    def attend(self, q, k, v, rotary, method, backend, device="cpu", layer=0):
        if self.lengths is None:
            docs = None if self.docs is None else torch.tensor(self.docs, device=device)
            k_pos = None if self.ids is None else torch.tensor(self.ids, device=device)
            settings = {"frequencies": rotary, "distance": method, "k_pos": k_pos, "doc_ids": docs, "mask": self.mask}
            return attend(q, k, v, **settings, backend=backend, layer=layer)
        segments = Segments.from_lengths(self.lengths, self.n_k, device, self.anchors)
        ids = torch.tensor(self.k_ids()[0], device=device)
        starts = None if self.ids is not None else self.starts or (0,) * len(self.lengths)
        layout = Layout(ids, ids, rotary, method, q.dtype, segments=segments, starts=starts)
        return attend_layout(q, k, v, layout, backend=backend, layer=layer)


GAPPED = ((0, 1, 2, 5, 6, 7, 8, 20, 21, 40), (3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
DOCS = ((0, 0, 0, 0, 1, 1, 1, 1, 1, 1), (0, 1, 1, 2, 2, 2, 2, 2, -1, -1))
RESET = ((0, 1, 2, 3, 0, 1, 2, 3, 4, 5), (0, 0, 1, 0, 1, 2, 3, 4, 0, 1))
RUNS, ANCHORS = (1, 7, 1, 12, 1, 5, 3), (-1, 0, 0, 0, -1, 21, 21)
IDS = (*range(8), 10, *range(12, 24), 0, 2, 3, 4, 8, 9, 11, 12, 20, *range(4))
PIECES = (9, 1, 14, 2)
CASES = {
    "one_token": Case(1, 1),
    "rows": Case(23, 23, rows=2),
    "decoding": Case(1, 23, rows=2),
    "chunk": Case(6, 23),
    "second_token": Case(1, 2),
    "offset": Case(10, 10, rows=2, ids=(tuple(range(7, 17)),) * 2),
    "gapped": Case(10, 10, rows=2, ids=GAPPED),
    "documents": Case(10, 10, rows=2, mask="document", docs=DOCS),
    "documents_interleaved": Case(7, 7, mask="document", docs=((0, 1, 0, 1, 1, 2, 0),)),
    "documents_reset": Case(10, 10, rows=2, ids=RESET, mask="document", docs=DOCS),
    "documents_gapped": Case(10, 10, rows=2, ids=GAPPED, mask="document", docs=DOCS),
    "documents_decoding": Case(1, 10, rows=2, mask="document", docs=DOCS),
    "anchor": Case(10, 10, rows=2, mask="anchor", docs=DOCS),
    "anchor_decoding": Case(1, 10, rows=2, mask="anchor", docs=DOCS),
    "packed": Case(29, 29, lengths=PIECES),
    "packed_running": Case(29, 29, lengths=PIECES, starts=(0, 9, 10, 24)),
    "packed_alike": Case(12, 12, lengths=(4, 4, 4)),
    "packed_alike_padded": Case(13, 13, lengths=(4, 4, 4)),
    "anchored": Case(34, 34, lengths=RUNS, anchors=ANCHORS, starts=(0, 1, 8, 9, 0, 1, 6)),
    "anchored_gapped": Case(34, 34, lengths=RUNS, anchors=ANCHORS, ids=(IDS,)),
}


def log_factor(base):
    """Make the factor max(1, ln(m + 1) / ln(base)) of a query at id m."""
    return lambda m: max(1.0, math.log(m + 1) / math.log(base))


TINY = DecoderConfig(24, 3, 4, 2, 40, 61, tie_embeddings=False, theta=50.0, attention_width=32, qkv="bias")


def enlarge(decoder, seed=0):
    """Draw weights large enough for attention to be far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            mean = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4 + mean)
    return decoder.eval()


def tiny(cfg=TINY, *, rotary=None, method=None, backend="auto"):
    """Make a float64 decoder with such weights."""
    rotary = rotary or frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
    method = method or distance("plain")
    return enlarge(Decoder(cfg, frequencies=rotary, distance=method, backend=backend).double())


def drawn(length, rows=1, vocab=TINY.vocab_size):
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
    groups, length = len(q) // len(k), q.shape[1]
    distances = [[float(rel(m, n)) for n in range(length)] for m in range(length)]
    heads = [logits_of_head(q[head], k[head // groups], speeds, distances).tolist() for head in range(len(q))]
    return [[[x * factor(m) for x in row[: m + 1]] for m, row in enumerate(head)] for head in heads]


def softmax(row):
    powers = [math.exp(x - max(row)) for x in row]
    return [p / math.fsum(powers) for p in powers]


def entropy_of(row):
    """Compute -sum p ln p of a row of logits, in nats."""
    return -math.fsum(p * math.log(p) for p in softmax(row) if p > 0)
