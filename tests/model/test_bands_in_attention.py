"""Every distance method in every backend against attention written pair by pair from the paper's equation."""

import math

import pytest
import torch

from lab.model.attention import attend
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.dense import assert_close_with_gradients, attention_by_distance, draw, rule

FLOAT64_TOL = 2e-6  # the product's promise; measured differences are below 1e-13
TIGHT_TOL = 1e-12  # float64 sums of some dozens of terms of order one
FLOAT32_TOL = 3e-5  # the product's promise for float32
THETA, WIDTH = 100.0, 8


def string(i, m, n, s, w):
    return i if i < s else i - s + w


def dca(i, m, n, c, s, w):
    r, back = m % s, m // s - n // s
    q = r if back == 0 else (s + r if r < w else c - 1) if back == 1 else c - 1
    return q - n % s


def self_extend(i, m, n, g, w):
    return i if i < w else m // g - n // g + w - w // g


METHODS = {  # the lab's parameters, and the equation as a function of i = m - n, m and n
    "plain": ({"method": "plain"}, lambda i, m, n: i),
    "string": ({"method": "string", "shift": 5, "window": 2}, lambda i, m, n: string(i, m, n, 5, 2)),
    "string_w0": ({"method": "string", "shift": 7, "window": 0}, lambda i, m, n: string(i, m, n, 7, 0)),
    "string_shift1": ({"method": "string", "shift": 1, "window": 1}, lambda i, m, n: string(i, m, n, 1, 1)),
    "dca": ({"method": "dca", "chunk": 6, "train_len": 10, "window": 4}, lambda i, m, n: dca(i, m, n, 10, 6, 4)),
    "dca_small_window": (
        {"method": "dca", "chunk": 4, "train_len": 9, "window": 2},
        lambda i, m, n: dca(i, m, n, 9, 4, 2),
    ),
    "dca_chunk1": ({"method": "dca", "chunk": 1, "train_len": 1}, lambda i, m, n: dca(i, m, n, 1, 1, 0)),
    "dca_intra_inter": (
        {"method": "dca", "chunk": 4, "train_len": 9, "parts": "intra_inter"},
        lambda i, m, n: dca(i, m, n, 9, 4, 0),
    ),
    "self_extend": ({"method": "self_extend", "group": 3, "window": 4}, lambda i, m, n: self_extend(i, m, n, 3, 4)),
    "self_extend_w0": ({"method": "self_extend", "group": 2, "window": 0}, lambda i, m, n: self_extend(i, m, n, 2, 0)),
    "rerope": ({"method": "rerope", "window": 4}, lambda i, m, n: min(i, 4)),
    "rerope_w0": ({"method": "rerope", "window": 0}, lambda i, m, n: 0),
    "leaky_rerope": (
        {"method": "leaky_rerope", "window": 3, "leak": 2.5},
        lambda i, m, n: i if i < 3 else 3 + (i - 3) / 2.5,
    ),
}
SPEEDS = [THETA ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
ROPE = frequencies("rope", head_dim=WIDTH, theta=THETA)
backends = pytest.mark.parametrize("backend", ["reference", "sdpa"])
methods = pytest.mark.parametrize(("parameters", "rel"), METHODS.values(), ids=METHODS)
ONCE = {name: case for name, case in METHODS.items() if name == case[0]["method"]}  # each at ordinary parameters
each_once = pytest.mark.parametrize(("parameters", "rel"), ONCE.values(), ids=ONCE)


def by_index(rel):
    """Turn the equation into a function of row and indices, for ids 0, 1, 2 and so on."""
    return lambda b, m, n: rel(m - n, m, n)


@methods
@backends
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1, 1), (1, 2, 1, 3, 3), (2, 4, 2, 23, 23), (2, 2, 2, 1, 23), (1, 4, 2, 6, 23), (1, 2, 1, 1, 2)],
    ids=["one_token", "shorter_than_all", "rows", "decoding", "chunked_prefill", "second_token"],
)
def test_outputs_equal_the_equation(parameters, rel, backend, shape):
    q, k, v = draw(1, *shape, WIDTH)
    expected = attention_by_distance(q, k, v, SPEEDS, by_index(rel), rule("causal", None))
    out = attend(q, k, v, frequencies=ROPE, distance=distance(**parameters), backend=backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=TIGHT_TOL)
    single = [x.float() for x in (q, k, v)]
    out = attend(*single, frequencies=ROPE, distance=distance(**parameters), backend=backend)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=FLOAT32_TOL)


@methods
@pytest.mark.parametrize(
    ("backend", "shape"),
    [("reference", (1, 2, 1, 6, 23)), ("sdpa", (2, 4, 2, 23, 23)), ("sdpa", (1, 2, 1, 6, 23))],
    ids=["reference", "sdpa_rows", "sdpa_chunked_prefill"],
)
def test_gradients_equal_those_of_the_equation(parameters, rel, backend, shape):
    leaves = [x.requires_grad_() for x in draw(2, *shape, WIDTH)]
    out = attend(*leaves, frequencies=ROPE, distance=distance(**parameters, log_n=4), backend=backend)
    truth = attention_by_distance(
        *leaves, SPEEDS, by_index(rel), rule("causal", None), lambda m: max(1.0, math.log(m + 1) / math.log(4))
    )
    assert_close_with_gradients(out, truth, leaves, TIGHT_TOL)


GAPPED = [[0, 1, 2, 5, 6, 7, 8, 20, 21, 40], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]
DOCS = [[0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2, 2, -1, -1]]
RUNNING = [list(range(10))] * 2
RESET = [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [0, 0, 1, 0, 1, 2, 3, 4, 0, 1]]
IDS = {
    "offset": ([list(range(7, 17))] * 2, "causal", None),
    "gapped": (GAPPED, "causal", None),
    "document_running": (RUNNING, "document", DOCS),
    "document_reset": (RESET, "document", DOCS),
    "document_gapped": (GAPPED, "document", DOCS),
    "anchor_running": (RUNNING, "anchor", DOCS),
}


@methods
@backends
@pytest.mark.parametrize(("ids", "mask", "docs"), IDS.values(), ids=IDS)
def test_ids_and_masks_of_rows(parameters, rel, backend, ids, mask, docs):
    q, k, v = draw(5, 2, 4, 2, 10, 10, WIDTH)
    out = attend(
        q,
        k,
        v,
        frequencies=ROPE,
        distance=distance(**parameters),
        k_pos=torch.tensor(ids),
        doc_ids=None if docs is None else torch.tensor(docs),
        mask=mask,
        backend=backend,
    )
    expected = attention_by_distance(
        q, k, v, SPEEDS, lambda b, m, n: rel(ids[b][m] - ids[b][n], ids[b][m], ids[b][n]), rule(mask, docs)
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=TIGHT_TOL)


@methods
@pytest.mark.parametrize("running", [False, True], ids=["reset", "running"])
def test_a_packed_row_equals_its_segments_alone(parameters, rel, running):
    lengths, total = [9, 1, 14, 2], 29
    leaves = [x.requires_grad_() for x in draw(6, 1, 4, 2, total, total, WIDTH)]
    segments = Segments.from_lengths(lengths, total)
    ids = torch.arange(total) if running else segments.position_ids
    starts = (0, 9, 10, 24) if running else (0, 0, 0, 0)
    layout = Layout.of(ids, ids, ROPE, distance(**parameters), torch.float64, segments=segments, starts=starts)
    out = attend(*leaves, layout=layout)
    begin, parts = 0, []
    for n, start in zip(lengths, starts, strict=True):
        part = slice(begin, begin + n)
        parts.append(
            attention_by_distance(
                *(x[:, :, part] for x in leaves),
                SPEEDS,
                lambda b, m, n, start=start: rel(m - n, m + start, n + start),
                rule("causal", None),
            )
        )
        begin += n
    expected = torch.cat([*parts, torch.zeros_like(leaves[0][:, :, :3])], dim=2)
    assert_close_with_gradients(out, expected, leaves, TIGHT_TOL)


@methods
def test_queries_in_parts_equal_one_pass(parameters, rel):
    q, k, v = draw(7, 2, 4, 2, 20, 20, WIDTH)
    method = distance(**parameters)
    whole = attend(q, k, v, frequencies=ROPE, distance=method)
    for chunks in ([1] * 20, [13, 1, 6]):
        outs, stop = [], 0
        for n in chunks:
            part, stop = slice(stop, stop + n), stop + n
            outs.append(attend(q[:, :, part], k[:, :, :stop], v[:, :, :stop], frequencies=ROPE, distance=method))
        torch.testing.assert_close(torch.cat(outs, dim=2), whole, rtol=0, atol=TIGHT_TOL)


FREQUENCIES = {  # method, inverse frequencies at THETA and width 8 (speeds 1, 0.316, 0.1, 0.0316), factor of layer 3
    "pi": ({"method": "pi", "factor": 4.0}, [s / 4 for s in SPEEDS], lambda m: 1.0),
    "ntk": ({"method": "ntk", "factor": 4.0}, [(THETA * 4 ** (8 / 6)) ** (-j / 4) for j in range(4)], lambda m: 1.0),
    "yarn_scale": ({"method": "yarn", "factor": 1.0, "train_len": 16, "attention_factor": 1.2}, SPEEDS, lambda m: 1.44),
    "entropy_abf": (
        {"method": "entropy_abf", "train_len": 4},
        SPEEDS,
        lambda m: max(1.0, math.log(m + 1) / math.log(4)),
    ),
}


@pytest.mark.parametrize(("frequency", "speeds", "factor"), FREQUENCIES.values(), ids=FREQUENCIES)
@backends
@each_once
def test_frequency_and_distance_methods_combine(parameters, rel, backend, frequency, speeds, factor):
    q, k, v = draw(8, 1, 2, 1, 15, 15, WIDTH)
    rotary = frequencies(**frequency, head_dim=WIDTH, theta=THETA)
    method = distance(**parameters, log_n=3)
    out = attend(q, k, v, frequencies=rotary, distance=method, layer=3, backend=backend)
    expected = attention_by_distance(
        *(q, k, v, speeds, by_index(rel), rule("causal", None)),
        lambda m: factor(m) * max(1.0, math.log(m + 1) / math.log(3)),
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=TIGHT_TOL)


EVERY = {
    "rope": {},
    "pi": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic_ntk": {"factor": 4.0, "train_len": 8, "length": 20},
    "ntk_by_parts": {"factor": 4.0, "train_len": 64},
    "yarn": {"factor": 4.0, "train_len": 64},
    "llama3": {"factor": 4.0, "train_len": 64},
    "abf": {"theta": 5000.0},
    "entropy_abf": {"theta": 5000.0, "train_len": 8},
}


@pytest.mark.parametrize(("name", "parameters"), EVERY.items(), ids=EVERY)
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_every_frequency_method_in_outputs_and_gradients(name, parameters, backend):
    rotary = frequencies(name, head_dim=WIDTH, **parameters)  # its frequencies are judged in tests/positions
    factor = {
        "yarn": lambda m: (0.1 * math.log(4) + 1) ** 2,
        "entropy_abf": lambda m: max(1.0, math.log(m + 1) / math.log(8)),
    }.get(name, lambda m: 1.0)
    leaves = [x.requires_grad_() for x in draw(13, 2, 4, 2, 19, 19, WIDTH)]
    out = attend(*leaves, frequencies=rotary, distance=distance("string", shift=6, window=2), layer=5, backend=backend)
    sees, speeds = rule("causal", None), rotary.inv_freq
    truth = attention_by_distance(*leaves, speeds, lambda b, m, n: string(m - n, m, n, 6, 2), sees, factor)
    assert_close_with_gradients(out, truth, leaves, TIGHT_TOL)


def test_layers_that_entropy_abf_exempts_are_left_alone():
    q, k, v = draw(9, 1, 1, 1, 9, 9, WIDTH)
    rotary = frequencies("entropy_abf", head_dim=WIDTH, theta=THETA, train_len=4)
    plain = attend(q, k, v, frequencies=ROPE)
    assert torch.equal(attend(q, k, v, frequencies=rotary, layer=1), plain)
    assert not torch.equal(attend(q, k, v, frequencies=rotary, layer=2), plain)


@pytest.mark.parametrize("n_tokens", [700])
def test_long_rows_equal_the_reference_in_single_precision(n_tokens):
    q, k, v = draw(11, 1, 2, 1, n_tokens, n_tokens, 16, dtype=torch.float32)
    for method in (
        distance("string", shift=n_tokens // 3),
        distance("dca", train_len=300),
        distance("rerope", window=90),
    ):
        out = attend(q, k, v, distance=method)
        exact = attend(q.double(), k.double(), v.double(), distance=method, backend="reference")
        torch.testing.assert_close(out.double(), exact, rtol=0, atol=FLOAT32_TOL)
