"""What tests of GPU backends share: the cases, and the comparison with attention by definition."""

import importlib.util
import math

import pytest
import torch

from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.dense import attention_by_distance, draw, rule
from tests.model.test_bands_in_attention import dca, self_extend, string

BFLOAT16_TOL = 3e-2  # rotated queries, keys, weights and outputs of order one to four are each rounded to 8 bits
FLOAT32_TOL = 3e-4  # a GPU's float32 products may be tensor-core sums in another order
HEADS, KV_HEADS, WIDTH = 4, 2, 64
ROPE = frequencies("rope", head_dim=WIDTH)
SPEEDS = [10000.0 ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
FLOAT32, BFLOAT16 = (torch.float32, FLOAT32_TOL), (torch.bfloat16, BFLOAT16_TOL)


def needs(backend, device):
    """Skip on a GPU for which a package is missing."""
    package = {"flash": "flash_attn", "xformers": "xformers"}.get(backend)
    if package and device.type == "cuda" and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def cases(*named):
    return pytest.mark.parametrize(
        ("backend", "dtype", "tolerance"),
        [pytest.param(name, *kind, id=f"{name}_{str(kind[0])[6:]}") for name, kind in named],
    )


HALF_KERNELS = [(name, BFLOAT16) for name in ("sdpa", "varlen", "flash", "xformers")]
kernels = cases(("sdpa", FLOAT32), *HALF_KERNELS)
tiled = cases(
    ("sdpa", FLOAT32),
    ("sdpa", BFLOAT16),
    ("varlen", BFLOAT16),
    ("flash", BFLOAT16),
)


def leaves_on(device, dtype, seed, n_q, n_k, rows=1):
    drawn = draw(seed, rows, HEADS, KV_HEADS, n_q, n_k, WIDTH)
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def exact(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


def assert_equal(out, leaves, expected, copies, tolerance):
    """Compare outputs, and gradients under a weight on every output."""
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=0, atol=tolerance)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    weight = weight.to(out.dtype)
    got = torch.autograd.grad((out * weight.to(out.device)).float().sum(), leaves)
    wanted = torch.autograd.grad((expected * weight.double()).sum(), copies)
    for x, y in zip(got, wanted, strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < tolerance


def packed_layout(lengths, total, device, dtype, method="plain", anchors=None):
    segments = Segments.from_lengths(lengths, total, device, anchors)
    method = distance(method) if isinstance(method, str) else method
    ids, starts = segments.position_ids, (0,) * len(lengths)
    return Layout.of(ids, ids, ROPE, method, dtype, segments=segments, starts=starts)


def documents(lengths, padding):
    docs = [s for s, n in enumerate(lengths) for _ in range(n)] + [-1] * padding
    ids = [i for n in [*lengths, padding] for i in range(n)]
    return [docs], [ids]


METHODS = {  # the lab's method, and its equation as a function of i = m - n, m and n
    "string": (distance("string", shift=25, window=6), lambda i, m, n: string(i, m, n, 25, 6)),
    "dca": (distance("dca", chunk=24, train_len=40, window=16), lambda i, m, n: dca(i, m, n, 40, 24, 16)),
    "self_extend": (distance("self_extend", group=4, window=16), lambda i, m, n: self_extend(i, m, n, 4, 16)),
    "rerope": (distance("rerope", window=20), lambda i, m, n: min(i, 20)),
    "leaky_rerope": (
        distance("leaky_rerope", window=20, leak=4.0, log_n=32),
        lambda i, m, n: i if i < 20 else 20 + (i - 20) / 4,
    ),
}
methods = pytest.mark.parametrize(("method", "rel"), METHODS.values(), ids=METHODS)


def by_equation(copies, method, rel, docs, ids):
    """Attend pair by pair by a method's equation, in the ids of one row."""
    log_n = method.log_n
    factor = {} if not log_n else {"factor": lambda m: max(1.0, math.log(ids[0][m] + 1) / math.log(log_n))}
    places = ids[0]
    return attention_by_distance(
        *copies,
        SPEEDS,
        lambda b, m, n: rel(places[m] - places[n], places[m], places[n]),
        rule("document", docs),
        **factor,
    )
