"""Attention by definition, written apart from the lab: float64, one head and one query at a time, complex numbers."""

import math

import torch


def turned(x, positions, theta):
    """Rotate (T, H) rows by their positions: pair (j, j + H/2) as a complex number times exp(i p theta^(-2j/H))."""
    half = x.shape[-1] // 2
    speeds = torch.tensor([theta ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=torch.float64)
    angles = torch.tensor([float(p) for p in positions], dtype=torch.float64)[:, None] * speeds
    return torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)


def dense_attention(q, k, v, theta, q_pos, k_pos, sees):
    """Attend; `sees(b, m, n)` says whether query index m of row b sees key index n; query m is key Tk - Tq + m."""
    (rows, heads, n_q, width), (_, kv_heads, n_k, _) = q.shape, k.shape
    q, k, v = q.double(), k.double(), v.double()
    out = []
    for b in range(rows):
        for h in range(heads):
            g = h // (heads // kv_heads)
            zq, zk = turned(q[b, h], q_pos[b], theta), turned(k[b, g], k_pos[b], theta)
            for m in range(n_q):
                seen = [n for n in range(n_k) if sees(b, n_k - n_q + m, n)]
                if not seen:
                    out.append(torch.zeros(width, dtype=torch.float64))
                    continue
                logits = (zq[m] * zk[seen].conj()).sum(-1).real / math.sqrt(width)
                weights = torch.exp(logits - logits.max())
                out.append((weights / weights.sum()) @ v[b, g, seen])
    return torch.stack(out).view(q.shape)


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
