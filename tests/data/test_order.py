import numpy as np
import pytest

from lab.data.segments import mix, sample_segments, shuffled
from tests.data.windows import sample_segment

KEYS = [0, 1, 12345, 2**63 + 5]
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64, 65, 255, 256, 257, 1000, 4097]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # the first output of splitmix64 from these seeds, as published with the generator and in its test vectors
        pytest.param(0, 0xE220A8397B1DCDAF, id="seed_0"),
        pytest.param(1234567, 6457827717110365317, id="seed_1234567"),
        # the second output from seed s is the first from s + 0x9E3779B97F4A7C15
        pytest.param(1234567 + 0x9E3779B97F4A7C15, 3203168211198807973, id="seed_1234567_second"),
    ],
)
def test_mix_is_splitmix64(value, expected):
    assert mix(value) == expected


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("n", SIZES)
def test_every_index_comes_out_once(n, key):
    assert sorted(shuffled(np.arange(n, dtype=np.uint64), n, key).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 3, 1000, 10**12 + 7])
def test_segments_of_many_samples_are_those_of_each_across_epochs(n):
    samples = np.array([0, 1, n - 1, n, n + 1, 2 * n, 5 * n - 1, 10**12, *range(990, 1010)])
    assert sample_segments(samples, n, seed=7).tolist() == [sample_segment(s, n, seed=7) for s in samples.tolist()]


def test_a_trillion_needs_no_memory():
    n = 10**12
    places = set(shuffled(np.arange(2000, dtype=np.uint64), n, key=3).tolist())
    assert len(places) == 2000
    assert min(places) >= 0
    assert max(places) < n
    assert max(places) > 0.99 * n > 0.01 * n > min(places)  # (1 - 0.01)^2000 = 2e-9 for either end to stay empty
