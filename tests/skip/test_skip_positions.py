"""What all methods promise, and how wrong arguments are refused."""

import numpy as np
import pytest

from lab.errors import ConfigError, LabError
from lab.skip import SKIP_METHODS, skip_positions, skip_positions_from_config
from lab.skip.longrecipe import LongRecipe
from lab.skip.pose import Pose
from tests.skip.draws import rng

METHODS = ["pose", "rpes", "longrecipe"]  # design.md, section 3: other programs rely on these
FAR = 1 << 40  # no array of this length may be made


def lengths_for(method, n_tokens, generator):
    """Draw sentences for the method that needs them."""
    if method != "longrecipe":
        return None
    ends = generator.random(n_tokens) < 0.2
    ends[-1] = True
    return np.diff(np.flatnonzero(ends), prepend=-1)


def test_methods_have_the_names_that_other_programs_rely_on():
    assert [*SKIP_METHODS] == METHODS
    assert {name: config.method for name, config in SKIP_METHODS.items()} == {name: name for name in METHODS}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(40))
def test_ids_rise_strictly_inside_the_target_window(method, seed):
    generator = rng(seed)
    n_tokens = int(generator.integers(1, 200))
    target_len = n_tokens + int(generator.integers(0, [2, 50, 2000][seed % 3]))
    lengths = lengths_for(method, n_tokens, generator)
    ids = skip_positions(method, n_tokens, target_len=target_len, sentence_lengths=lengths, generator=generator)
    assert (ids.shape, ids.dtype) == ((n_tokens,), np.int64)
    assert (np.diff(ids) >= 1).all()
    assert ids[0] >= 0
    assert ids[-1] <= target_len - 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 64])
def test_a_full_target_window_has_ids_without_gaps(method, n_tokens):
    lengths = lengths_for(method, n_tokens, rng(1))
    ids = skip_positions(method, n_tokens, target_len=n_tokens, sentence_lengths=lengths, generator=rng())
    assert ids.tolist() == [*range(n_tokens)]


@pytest.mark.parametrize("method", METHODS)
def test_one_free_id_is_sometimes_skipped_and_sometimes_not(method):
    last = {
        int(
            skip_positions(
                method,
                5,
                target_len=6,
                sentence_lengths=[2, 3] if method == "longrecipe" else None,
                generator=rng(seed),
            )[-1]
        )
        for seed in range(50)
    }
    assert last == {4, 5}


@pytest.mark.parametrize("method", METHODS)
def test_a_far_target_window_costs_no_memory(method):
    lengths = lengths_for(method, 50, rng(1))
    ids = skip_positions(method, 50, target_len=FAR, sentence_lengths=lengths, generator=rng())
    assert ids[-1] > FAR // 1000


@pytest.mark.parametrize("method", METHODS)
def test_the_generator_alone_decides(method):
    lengths = lengths_for(method, 90, rng(1))

    def draw(seed):
        return skip_positions(method, 90, target_len=500, sentence_lengths=lengths, generator=rng(seed)).tolist()

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    generator = rng(5)
    first, second = (
        skip_positions(method, 90, target_len=500, sentence_lengths=lengths, generator=generator).tolist()
        for _ in range(2)
    )
    assert first == draw(5)
    assert first != second


@pytest.mark.parametrize("method", METHODS)
def test_a_config_gives_the_same_ids_as_the_name(method):
    lengths = lengths_for(method, 20, rng(1))
    by_name = skip_positions(method, 20, target_len=60, sentence_lengths=lengths, generator=rng(2))
    config = SKIP_METHODS[method](target_len=60)
    by_config = skip_positions_from_config(config, 20, sentence_lengths=lengths, generator=rng(2))
    assert by_name.tolist() == by_config.tolist()


TARGET = "Target window T in tokens, which all ids stay below; the paper trains on samples of 30% of it"
GENERATOR = "must be a numpy.random.Generator; pass numpy.random.default_rng(seed)"
ROW = "sentence_lengths: must be one row of whole numbers, tokens of each sentence; see lab.skip.split_sentences"
FITS = (
    "or the ids do not fit below it (the paper trains on samples of 30% of the target window); raise it or shorten the "
    "sample"
)
WHOLE = "must be a whole number >= 1; leave empty samples out"


def of(method, n_tokens, **arguments):
    return method, n_tokens, {"target_len": 8, "generator": rng(), **arguments}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            of("longrecip", 4), ["skip.method=longrecip: unknown method; did you mean longrecipe?"], id="near"
        ),
        pytest.param(
            of("xqzw", 4), ["skip.method=xqzw: unknown method; use one of: pose, rpes, longrecipe"], id="foreign"
        ),
        pytest.param(of("pose", 0), [f"n_tokens=0: {WHOLE}"], id="no_tokens"),
        pytest.param(of("rpes", -3), [f"n_tokens=-3: {WHOLE}"], id="negative_tokens"),
        pytest.param(of("longrecipe", 2.0, sentence_lengths=[2]), [f"n_tokens=2.0: {WHOLE}"], id="tokens_with_a_point"),
        pytest.param(of("pose", True), [f"n_tokens=True: {WHOLE}"], id="tokens_true"),
        pytest.param(of("pose", 9), [f"target_len=8: must be >= n_tokens=9, {FITS}"], id="pose_too_long"),
        pytest.param(of("rpes", 9), [f"target_len=8: must be >= n_tokens=9, {FITS}"], id="rpes_too_long"),
        pytest.param(
            of("longrecipe", 9, sentence_lengths=[9]),
            [f"target_len=8: must be >= n_tokens=9, {FITS}"],
            id="longrecipe_too_long",
        ),
        pytest.param(of("pose", 4, target_len=0), [f"target_len=0: must be >= 1; {TARGET}"], id="target_zero"),
        pytest.param(
            of("pose", 4, target_len=8.0), [f"target_len=8.0: must be a whole number; {TARGET}"], id="target_point"
        ),
        pytest.param(of("pose", 4, target_len=None), [f"target_len=None: must be set; {TARGET}"], id="target_none"),
        pytest.param(of("pose", 4, generator=None), [f"generator=None: {GENERATOR}"], id="no_generator"),
        pytest.param(of("rpes", 4, generator=7), [f"generator=7: {GENERATOR}"], id="a_seed_for_a_generator"),
        pytest.param(
            of("rpes", 4, generator=np.random.RandomState(0)),
            [f"generator=RandomState(MT19937): {GENERATOR}"],
            id="old_generator",
        ),
        pytest.param(
            of("pose", 4, sentence_lengths=[4]),
            ["sentence_lengths: would be ignored, pose does not look at sentences; leave it out"],
            id="pose_with_sentences",
        ),
        pytest.param(
            of("rpes", 4, sentence_lengths=[]),
            ["sentence_lengths: would be ignored, rpes does not look at sentences; leave it out"],
            id="rpes_with_sentences",
        ),
        pytest.param(
            of("longrecipe", 4),
            [
                "sentence_lengths=None: must be given, longrecipe breaks ids between sentences only; see "
                "lab.skip.split_sentences"
            ],
            id="no_sentences",
        ),
        pytest.param(
            of("longrecipe", 4, sentence_lengths=[5, -1]),
            ["sentence_lengths[1]=-1: must be >= 1; leave empty sentences out"],
            id="negative_sentence",
        ),
        pytest.param(
            of("longrecipe", 4, sentence_lengths=np.array([2, 0, 2])),
            ["sentence_lengths[1]=0: must be >= 1; leave empty sentences out"],
            id="empty_sentence",
        ),
        pytest.param(
            of("longrecipe", 4, sentence_lengths=[2, 3]),
            ["sum(sentence_lengths)=5: must be n_tokens=4, as every token is in one sentence; split this sample"],
            id="sum_above",
        ),
        pytest.param(
            of("longrecipe", 4, sentence_lengths=[]),
            ["sum(sentence_lengths)=0: must be n_tokens=4, as every token is in one sentence; split this sample"],
            id="sum_of_nothing",
        ),
        pytest.param(of("longrecipe", 4, sentence_lengths=[2.0, 2.0]), [ROW], id="sentences_with_a_point"),
        pytest.param(of("longrecipe", 4, sentence_lengths=[True] * 4), [ROW], id="sentences_true"),
        pytest.param(of("longrecipe", 4, sentence_lengths=[[2, 2]]), [ROW], id="sentences_in_rows"),
        pytest.param(of("longrecipe", 4, sentence_lengths=[[2], [1, 1]]), [ROW], id="sentences_in_uneven_rows"),
        pytest.param(of("longrecipe", 4, sentence_lengths=4), [ROW], id="sentences_a_number"),
        pytest.param(of("longrecipe", 4, sentence_lengths="22"), [ROW], id="sentences_text"),
        pytest.param(
            of("longrecipe", 9, sentence_lengths=[0], generator=3),
            [
                f"target_len=8: must be >= n_tokens=9, {FITS}",
                "sentence_lengths[0]=0: must be >= 1; leave empty sentences out",
                f"generator=3: {GENERATOR}",
            ],
            id="all_at_once",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments, lines):
    method, n_tokens, others = arguments
    with pytest.raises(ConfigError) as caught:
        skip_positions(method, n_tokens, **others)
    assert str(caught.value) == "\n".join(lines)
    assert caught.value.faults == tuple(lines)
    assert isinstance(caught.value, LabError)


@pytest.mark.parametrize(
    ("n_tokens", "faults"),
    [(7, 0), (8, 0), (9, 1)],
    ids=["one_less", "equal", "one_more"],
)
def test_length_that_does_not_fit_is_a_fault_of_the_config(n_tokens, faults):
    assert len(LongRecipe(target_len=8).length_faults(n_tokens)) == faults
    assert len(Pose(target_len=8).length_faults(n_tokens)) == faults
