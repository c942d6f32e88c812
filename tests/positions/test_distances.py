"""What holds for every distance method: its equation, and the factor on the logits, log_n.

The factor is max(1, ln(q_pos + 1) / ln L); every method takes it beside its own parameters.
"""

import itertools
import random
from fractions import Fraction

import pytest
import torch

from lab.positions import DISTANCE_METHODS, FREQUENCY_METHODS, distance
from tests.positions.cases import DISTANCES, FREQUENCIES

FLOAT64_TOL = 1e-14  # quotients in float64, right to some units of 1e-16
OFFSETS = [0, 1, 1000, 2**33]  # of the first token; the last is beyond 32-bit ids


def string(rng):
    shift = rng.randint(1, 40)
    window = rng.randint(0, shift)
    return {"shift": shift, "window": window}, lambda m, n: m - n if m - n < shift else m - n - shift + window


def dca(rng):
    c = rng.randint(1, 30)
    s = rng.randint(1, c)
    w = rng.randint(0, c - s)
    # Eq. 2 to 7 as lists, one place for each r = m mod s
    successive = ([*range(s, s + w)] + [c - 1] * s)[:s]

    def rule(m, n):
        return [m % s, successive[m % s], c - 1][min(m // s - n // s, 2)] - n % s

    return {"train_len": c, "chunk": s, "window": w}, rule


def self_extend(rng):
    group = rng.randint(1, 12)
    window = rng.randint(0, 30)

    def rule(m, n):
        return m - n if m - n < window else m // group - n // group + window - window // group

    return {"group": group, "window": window}, rule


def rerope(rng):
    window = rng.randint(0, 50)
    return {"window": window}, lambda m, n: min(m - n, window)


def leaky_rerope(rng):
    window = rng.randint(0, 40)
    leak = rng.choice([1.0, 1.5, 3.0, 7.3, 64.0])

    def rule(m, n):
        return m - n if m - n < window else window + (m - n - window) / Fraction(leak)

    return {"window": window, "leak": leak}, rule


EQUATIONS = {  # draws parameters, with the equation as a function of both positions
    "plain": lambda rng: ({}, lambda m, n: m - n),
    "string": string,
    "dca": dca,
    "self_extend": self_extend,
    "rerope": rerope,
    "leaky_rerope": leaky_rerope,
}
every = pytest.mark.parametrize("method", EQUATIONS)


def test_every_method_is_here():
    """They have the names that other programs rely on."""
    assert [*EQUATIONS] == [*DISTANCES] == [*DISTANCE_METHODS]
    assert [*FREQUENCY_METHODS] == [*FREQUENCIES]


@every
def test_relative_positions_equal_the_equation_pair_by_pair_in_fractions(method):
    for offset, seed in itertools.product(OFFSETS, range(30)):
        rng = random.Random(seed)
        parameters, rule = EQUATIONS[method](rng)
        ids = range(offset, offset + rng.randint(1, 60))
        q_pos, k_pos = (sorted(rng.sample(ids, rng.randint(1, min(len(ids), 16)))) for _ in "qk")
        rel = distance(method, **parameters).rel_pos(torch.tensor(q_pos), torch.tensor(k_pos)).tolist()
        tolerance = FLOAT64_TOL * ("leak" in parameters)
        for (m, row), (k, n) in itertools.product(zip(q_pos, rel, strict=True), enumerate(k_pos)):
            if n <= m:
                assert abs(Fraction(row[k]) - rule(m, n)) <= tolerance * rule(m, n), (m, n, row[k], rule(m, n))


@every
def test_factor_by_hand(method):
    for log_n, q_pos, expected in (
        # within L tokens; 64 = 16^(3/2), 256 = 16^2; ln 17 / ln 16 = 2.8332133440562161 / 2.7725887222397812
        (16, [0, 1, 14, 15, 63, 255, 16], [1.0, 1.0, 1.0, 1.0, 1.5, 2.0, 1.0218657103125849]),
        (10, [99, 999], [2.0, 3.0]),  # 10^2, 10^3
        (2, [1, 2**20 - 1], [1.0, 20.0]),  # the least L: ln 2^20 / ln 2
    ):
        built = distance(method, log_n=log_n, **DISTANCES[method])
        factor = built.logit_factor(torch.tensor(q_pos))
        assert built.scales_logits
        assert factor.dtype == torch.float64
        assert factor.tolist() == pytest.approx(expected, rel=FLOAT64_TOL)


@every
def test_left_out_there_is_no_factor_and_given_it_changes_no_position(method):
    built, ids = distance(method, **DISTANCES[method]), torch.arange(40)
    assert not built.scales_logits
    for q_pos in (torch.tensor(ids, dtype=torch.int64) for ids in ([5], [], [[0, 1], [4, 100_000]])):
        factor = built.logit_factor(q_pos)
        assert (factor.dtype, factor.shape) == (torch.float64, q_pos.shape)
        assert (factor == 1.0).all()
    assert torch.equal(distance(method, log_n=8, **DISTANCES[method]).rel_pos(ids, ids), built.rel_pos(ids, ids))


@pytest.mark.parametrize(
    ("method", "parameters", "field"),
    [
        ("string", {"shift": 9, "window": 3}, "shift=9"),
        ("string", {"shift": 1, "window": 0}, "shift=1"),
        # the paper's w = c - s keeps all distances below c, so texts of up to c tokens are unchanged
        ("dca", {"train_len": 12}, "train_len=12"),
        ("dca", {"train_len": 12, "chunk": 6, "window": 2}, "train_len=12"),
        ("dca", {"train_len": 12, "chunk": 5, "parts": "intra_inter"}, "train_len=12"),
        ("dca", {"train_len": 12, "chunk": 5, "parts": "intra"}, "train_len=12"),
        ("self_extend", {"group": 2, "window": 9}, "window=9"),
        ("rerope", {"window": 9}, "window=9"),
        ("leaky_rerope", {"window": 9, "leak": 2.0}, "window=9"),
    ],
)
def test_length_is_a_fault_exactly_where_every_distance_stays_plain(method, parameters, field):
    built = distance(method, **parameters)
    ids = torch.arange(40)
    differs = torch.tril(built.rel_pos(ids, ids) != ids[:, None] - ids)  # also where a pair is hidden
    ignored = [n for n in range(1, 40) if not differs[:n].any()]
    faults = {n: built.length_errors(n) for n in range(1, 40)}
    assert [n for n in faults if faults[n]] == ignored
    for n in ignored:
        (fault,) = faults[n]
        assert fault.startswith(f"{field}: ")
        assert "; " in fault
