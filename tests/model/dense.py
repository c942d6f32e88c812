"""Attention by definition, written apart from the lab: float64, one head and one query at a time, complex numbers."""

import math

import torch


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
    """Draw q, k, v."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(rows, heads, n_q, width), (rows, kv_heads, n_k, width), (rows, kv_heads, n_k, width)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def attention_by_distance(q, k, v, speeds, rel, sees, factor=lambda m: 1.0):
    """Attend with logits Re(q_m conj(k_n) exp(i rel(b, m, n) speed)) / sqrt(H) * factor(m), pair by pair in float64.

    `rel`, `sees` and `factor` take query and key indices among the keys' tokens; query m of the call is Tk - Tq + m.
    """
    (rows, heads, n_q, width), (_, kv_heads, n_k, _) = q.shape, k.shape
    half, speeds = width // 2, torch.as_tensor(speeds, dtype=torch.float64)
    q, k, v = q.double(), k.double(), v.double()
    out = []
    for b in range(rows):
        places = range(n_k - n_q, n_k)
        seen = torch.tensor([[bool(sees(b, m, n)) for n in range(n_k)] for m in places])
        distances = [[float(rel(b, m, n)) if sees(b, m, n) else 0.0 for n in range(n_k)] for m in places]
        turn = torch.polar(
            torch.ones(1, dtype=torch.float64), torch.tensor(distances, dtype=torch.float64)[..., None] * speeds
        )
        scale = torch.tensor([float(factor(m)) for m in places], dtype=torch.float64)[:, None] / math.sqrt(width)
        for h in range(heads):
            g = h // (heads // kv_heads)
            zq = torch.complex(q[b, h, :, :half], q[b, h, :, half:])
            zk = torch.complex(k[b, g, :, :half], k[b, g, :, half:])
            logits = (zq[:, None] * zk[None].conj() * turn).sum(-1).real * scale
            weights = torch.where(seen, torch.exp(logits - logits.max()), 0.0)
            total = weights.sum(-1, keepdim=True)
            out.append(torch.where(total > 0, weights / total, 0.0) @ v[b, g])
    return torch.stack(out).view(q.shape)


def assert_close_with_gradients(out, truth, leaves, tolerance):
    """Compare outputs, and gradients under a random weight on every output to ten times the tolerance."""
    torch.testing.assert_close(out, truth, rtol=0, atol=tolerance)
    weight = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got, expected = (torch.autograd.grad((x * weight).sum(), leaves) for x in (out, truth))
    for name, x, y in zip("qkv", got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=10 * tolerance, msg=lambda text, name=name: f"{name}: {text}")
