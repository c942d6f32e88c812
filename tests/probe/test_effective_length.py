import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import lab.probe.effective_length
from lab.counts import PositionCounts
from lab.errors import ConfigError, DataError
from lab.probe.config import ProbeConfig
from lab.probe.curve import LengthResult, effective_lengths
from lab.probe.effective_length import NeedleProbe, ResultStore, Worker
from lab.probe.intervals import exact_limits, full_design
from lab.probe.protocols import window_warning
from lab.probe.records import length_record, summary_record

HAYSTACK = " ".join(f"bake{'.' if k % 7 == 6 else ''}" for k in range(4000))
STOP = 1
BUDGET = 24


class Oracle:
    """Reads the numbers off the prompt; what it answers is given for each length."""

    def __init__(self, tokenizer, answer):
        self.tokenizer, self.answer = tokenizer, answer
        self.calls, self.lengths = 0, []

    def __call__(self, prompts, n_tokens, ended=None):
        self.calls += 1
        length = prompts.shape[1] + n_tokens
        self.lengths.append(length)
        rows = []
        for prompt in prompts.tolist():
            numbers = re.findall(r"One of the magic numbers is ([0-9]+)\.", self.tokenizer.decode(prompt))
            text = self.answer(length, numbers)
            ids = [*self.tokenizer.encode(text, add_special_tokens=False).ids, STOP][:n_tokens]
            rows.append(ids + [STOP] * (n_tokens - len(ids)))
        return torch.tensor(rows)


def right_up_to(longest):
    return lambda length, numbers: " " + ", ".join(numbers) + "." if length <= longest else " 0, 0 and 0."


def make_probe(bpe, **settings):
    values = {"tests": 6, "step": 32, "max_length": 384, "needles": 4, "digits": 3, "answer_budget": BUDGET, "seed": 3}
    config = ProbeConfig(**values | settings)
    return NeedleProbe(config, bpe, HAYSTACK, window=96, stop_id=STOP)


def test_a_probe_beyond_the_window_is_warned_of(bpe):
    probe = make_probe(bpe)
    shortest, first = probe.shortest(), probe.lengths[0]
    line = window_warning(probe.config, bpe, first - 1)
    assert line.startswith(f"probe.step=32: no probed length fits the window of {first - 1}, the first is {first}")
    assert f"takes {shortest})" in line
    assert "\n" not in line
    assert window_warning(probe.config, bpe, first) is None


def results(probe, answer):
    return list(probe.run(Oracle(probe.tokenizer, answer)))


@pytest.mark.parametrize("longest", [192, 256, 352, 384])
def test_effective_length_is_where_the_oracle_ends(bpe, longest):
    probe = make_probe(bpe)
    curve = results(probe, right_up_to(longest))
    assert [r.accuracy for r in curve] == [1.0 if r.length <= longest else 0.0 for r in curve]
    assert effective_lengths(curve, 0.8)["effective_length"] == longest


@pytest.mark.parametrize(
    ("accuracies", "threshold", "expected"),
    [
        pytest.param([10, 8, 7, 10], 0.8, 256, id="ends_before_the_first_that_fails"),
        pytest.param([10, 8, 8, 8], 0.8, 512, id="all_pass"),
        pytest.param([10, 9, 10, 10], 1.0, 128, id="threshold_one"),
        pytest.param([0, 0, 0, 0], 0.0, 512, id="threshold_zero"),
        pytest.param([7, 10, 10, 10], 0.8, None, id="first_fails"),
        pytest.param([], 0.8, None, id="nothing_probed"),
    ],
)
def test_effective_length_by_hand(accuracies, threshold, expected):
    curve = [LengthResult(128 * (k + 1), 10, passed, []) for k, passed in enumerate(accuracies)]
    assert effective_lengths(curve, threshold)["effective_length"] == expected


@pytest.mark.parametrize(("required", "says", "passes"), [(1, 1, 1), (2, 1, 0), (2, 2, 1), (3, 2, 0), (4, 4, 1)])
def test_a_test_passes_when_enough_numbers_are_found(bpe, required, says, passes):
    probe = make_probe(bpe, required=required, max_length=256)
    curve = results(probe, lambda length, numbers: " ".join(numbers[:says]))
    assert {r.accuracy for r in curve} == {float(passes)}
    assert {case["found"] for r in curve for case in r.cases} == {says}


def test_a_length_passes_at_the_share_of_the_threshold(bpe):
    # the oracle is silent on the test that has the first test's first number: 4 of 5 pass, a share of exactly 0.8
    probe = make_probe(bpe, tests=5, max_length=224)
    case_numbers = {length: [case.numbers for case in probe.cases(length)] for length in probe.lengths}
    wrong = {numbers[0][0] for numbers in case_numbers.values()}
    (result, *_) = results(probe, lambda length, numbers: "" if numbers[0] in wrong else " ".join(numbers))
    assert (result.tests, result.passed, result.accuracy) == (5, 4, 0.8)
    assert effective_lengths([result], 0.8)["effective_length"] == result.length
    assert effective_lengths([result], 0.81)["effective_length"] is None


def test_probe_stops_at_the_first_failure_without_max_length(bpe):
    probe = make_probe(bpe, max_length=None)
    assert probe.lengths[-1] == 384  # four windows of 96 at the most
    curve = results(probe, right_up_to(256))
    assert [r.length for r in curve] == [length for length in probe.lengths if length <= 288]
    assert [r.accuracy for r in curve][-2:] == [1.0, 0.0]


def test_probe_goes_on_to_max_length_when_it_is_given(bpe):
    probe = make_probe(bpe)
    curve = results(probe, lambda length, numbers: " ".join(numbers) if length in (256, 320) else "")
    assert [r.length for r in curve] == probe.lengths
    assert effective_lengths(curve, 0.8)["effective_length"] is None


def test_lengths_are_the_multiples_of_step_with_room(bpe):
    probe = make_probe(bpe)
    least = min(probe.lengths)
    assert probe.lengths == list(range(least, 385, 32))
    assert least - 32 < probe.shortest() <= least
    for length in probe.lengths:
        assert {len(case.prompt_ids) for case in probe.cases(length)} == {length - BUDGET}


def test_an_answer_ends_at_the_end_of_the_document(bpe):
    probe = make_probe(bpe, tests=2, max_length=224)

    def model(prompts, n_tokens):
        numbers = re.findall(r"numbers is ([0-9]+)\.", bpe.decode(prompts[0].tolist()))
        ids = bpe.encode(f" {numbers[0]}", add_special_tokens=False).ids
        late = bpe.encode(f" {numbers[1]} {numbers[2]}", add_special_tokens=False).ids
        return torch.tensor([[*ids, STOP, *late]])

    case = next(probe.run(lambda p, n, ended: torch.cat([model(p[k : k + 1], n) for k in range(len(p))]))).cases[0]
    assert case["found"] == 1
    assert case["answer"] == f" {case['numbers'][0]}"


def test_records_hold_what_the_case_was(bpe):
    probe = make_probe(bpe, tests=3, max_length=224)
    (result, *_) = results(probe, right_up_to(224))
    for test, (record, case) in enumerate(zip(result.cases, probe.cases(result.length), strict=True)):
        assert (record["length"], record["test"]) == (result.length, test)
        assert (record["numbers"], record["prompt_hash"]) == (case.numbers, case.prompt_hash)
        assert record["depths"] == pytest.approx(case.depths, abs=1e-6)


def test_prompts_are_a_function_of_seed_and_length(bpe):
    few, many, other = make_probe(bpe, tests=3), make_probe(bpe, tests=7, step=64), make_probe(bpe, seed=4)
    assert few.cases(320) == many.cases(320)[:3]
    hashes = [case.prompt_hash for probe in (many, other) for length in (320, 384) for case in probe.cases(length)]
    assert len(set(hashes)) == len(hashes)
    numbers = [tuple(case.numbers) for length in (320, 384) for case in many.cases(length)]
    assert len(set(numbers)) == len(numbers), "every length and test draws numbers of its own"


class Ranks:
    """Runs all ranks of a probe side by side, as threads that join their rows where processes would."""

    def __init__(self, make, world_size, model):
        self.barrier, self.parts = threading.Barrier(world_size, timeout=60), [[] for _ in range(world_size)]
        probes = [make() for _ in range(world_size)]
        self.models = [model(probe) for probe in probes]
        with ThreadPoolExecutor(world_size) as pool:
            jobs = [
                pool.submit(self.run, probe, model, rank)
                for rank, (probe, model) in enumerate(zip(probes, self.models, strict=True))
            ]
            self.results = [job.result() for job in jobs]

    def run(self, probe, model, rank):
        def gather(rows):
            self.parts[rank] = rows
            self.barrier.wait()
            joined = [row for part in self.parts for row in part]
            self.barrier.wait()
            return joined

        return list(probe.run(model, Worker(rank, len(self.parts), gather)))


def assert_ranks_agree(make, world_size, answer):
    alone = results(make(), answer)
    assert all(
        found == alone for found in Ranks(make, world_size, lambda probe: Oracle(probe.tokenizer, answer)).results
    )
    return alone


@pytest.mark.parametrize(("tests", "world_size"), [(6, 3), (7, 3), (2, 3), (1, 2)])
def test_ranks_together_give_the_records_of_one(bpe, tests, world_size):
    def make():
        return make_probe(bpe, tests=tests, max_length=288, batch=2)

    assert_ranks_agree(make, world_size, right_up_to(256))


def test_ranks_answer_prompts_of_few_lengths(bpe):
    def make():
        config = ProbeConfig(
            protocol="released", needles=4, digits=6, tests=24, step=64, max_length=384, batch=24, seed=3
        )
        return NeedleProbe(config, bpe, HAYSTACK, window=384, stop_id=STOP)

    ranks = Ranks(make, 3, lambda probe: Oracle(probe.tokenizer, right_up_to(384)))
    probe = make()
    drawn = {len(case.prompt_ids) for length in probe.lengths for case in probe.cases(length)}
    ran = [set(oracle.lengths) for oracle in ranks.models]
    assert len(drawn) > 3
    assert sum(map(len, ran)) <= len(drawn) + 2 * len(probe.lengths), "a length at most is shared at each border"


def right_in_some(share, longest):
    """Answer a share of the tests, chosen by their first number, at lengths up to `longest`."""
    return lambda length, numbers: " ".join(numbers) if length <= longest and int(numbers[0]) % 97 < 97 * share else ""


SEQUENTIAL = {"tests": 60, "max_length": 288, "sequential": True, "error": 0.02}


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_stop_where_one_does(bpe, world_size):
    def make():
        return make_probe(bpe, batch=3, **SEQUENTIAL)

    alone = assert_ranks_agree(make, world_size, right_in_some(0.9, 256))
    assert len({result.tests for result in alone}) > 1, "not all lengths stop at once"


@pytest.mark.parametrize("batch", [1, 64])
def test_a_sequential_length_is_the_beginning_of_a_whole_one(bpe, batch):
    answer = right_in_some(0.9, 256)
    probe = make_probe(bpe, batch=batch, **SEQUENTIAL)
    whole = results(make_probe(bpe, tests=60, max_length=288), answer)
    for first, full in zip(results(probe, answer), whole, strict=True):
        assert first.cases == full.cases[: first.tests]
        stops = [t for t in probe.design.looks if probe.design.is_over(t, sum(c["found"] > 1 for c in full.cases[:t]))]
        assert first.tests == stops[0]
        assert (first.low, first.high) == exact_limits(probe.design, first.tests, first.passed, 0.95)
        assert (full.low, full.high) == pytest.approx(
            exact_limits(full_design(60, (0.8,)), 60, full.passed, 0.95), abs=1e-9
        )


def test_a_round_runs_no_more_tests_than_it_has(bpe):
    probe = make_probe(bpe, batch=64, **SEQUENTIAL)
    oracle = Oracle(bpe, right_up_to(0))
    ran = list(probe.run(oracle))
    assert [result.tests for result in ran] == [3] * len(ran)
    assert oracle.calls == len(ran)


def test_several_thresholds_go_on_until_the_lowest_has_failed(bpe):
    def answer(length, numbers):
        return " ".join(numbers) if int(numbers[0]) % 97 < 97 * {True: 0.7, False: 0.2}[length <= 256] else ""

    def probed(**settings):
        return [r.length for r in results(make_probe(bpe, tests=40, max_length=None, **settings), answer)]

    lengths = make_probe(bpe).lengths
    assert probed() == lengths[:1]
    assert probed(thresholds=(0.5, 0.8)) == [length for length in lengths if length <= 288]


class Remembering(ResultStore):
    """Knows some tests by heart and hears of the others."""

    def __init__(self, rows):
        self.rows, self.heard = rows, []

    def known(self, length):
        return {test: row for (other, test), row in self.rows.items() if other == length}

    def keep(self, length, rows):
        self.heard += [(length, test) for test in rows]


@pytest.mark.parametrize("settings", [{"tests": 9, "max_length": 224}, SEQUENTIAL], ids=["all", "sequential"])
def test_tests_that_are_known_are_not_run_again(bpe, settings):
    probe = make_probe(bpe, batch=4, **settings)
    whole = results(probe, right_up_to(224))
    rows = {(r.length, case["test"]): case for r in whole for case in r.cases}
    known = {key: row for key, row in rows.items() if key[1] % 3 == 1 or key[1] < 4}
    memory, oracle = Remembering(known), Oracle(bpe, right_up_to(224))
    assert list(probe.run(oracle, store=memory)) == whole
    assert sorted(memory.heard) == sorted(rows.keys() - known.keys())
    memory, oracle = Remembering(rows), Oracle(bpe, right_up_to(224))
    assert list(probe.run(oracle, store=memory)) == whole
    assert oracle.calls == 0


def test_seconds_are_those_of_all_tests_by_the_ones_that_ran(bpe, monkeypatch):
    probe = make_probe(bpe, tests=8, max_length=224)
    rows = {(224, case["test"]): case for case in results(probe, right_up_to(224))[-1].cases}
    clock = iter([50.0, 53.0, 0.0, 9.0])
    monkeypatch.setattr(lab.probe.effective_length, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    half = Remembering({key: row for key, row in rows.items() if key[1] >= 2})
    oracle = Oracle(bpe, right_up_to(224))
    assert probe.run_length(oracle, 224, Worker(), half).seconds == 12.0  # two of eight tests took 3
    assert probe.run_length(oracle, 224, Worker(), Remembering(rows)).seconds is None


def test_a_batch_is_told_as_soon_as_it_is_finished(bpe):
    probe, memory = make_probe(bpe, tests=7, batch=3, max_length=224), Remembering({})
    oracle = Oracle(bpe, right_up_to(224))

    def model(prompts, n_tokens, ended):
        assert len(memory.heard) == 3 * oracle.calls
        return oracle(prompts, n_tokens)

    probe.run_length(model, probe.lengths[0], Worker(), memory)
    assert memory.heard == [(probe.lengths[0], test) for test in range(7)]


def test_the_records_of_a_probe(bpe):
    probe = make_probe(bpe, tests=10, thresholds=(0.5,), max_length=224)
    curve = [LengthResult(192, 10, 9, [], 0.55, 0.99), LengthResult(224, 10, 6, [], 0.26, 0.88, 7.5)]
    about = {"model": "m", "consumed_tokens": 4096, "method": "rope+plain"}
    haystack = hashlib.sha256(probe.haystack.encode()).hexdigest()[:16]
    tests = {"protocol": "ours", "needles": 4, "digits": 3, "required": 2, "answer_budget": probe.config.answer_budget}
    tests |= {"haystack": haystack, "seed": 3}
    counts = PositionCounts(224)
    counts.add_segments([224, 200, 193])
    assert length_record(probe, curve[1], about, counts) == {
        **about,
        **tests,
        "length": 224,
        "tests": 10,
        "passed": 6,
        "accuracy": 0.6,
        "low": 0.26,
        "high": 0.88,
        "verdict": "fail",
        "confidence": 0.95,
        "n": 10,
        "score": 0.6,
        "f": None,  # 224 is beyond the counter
        "stops": None,
        "seconds": 7.5,
    }
    for passed, verdict in ((9, "pass"), (8, "pass"), (7, "fail")):
        assert length_record(probe, LengthResult(192, 10, passed, []), about, None)["verdict"] == verdict
    # smooth: a third of the way from 192 to 224 for 0.8
    main = {"threshold": 0.8, "effective_length": 192, "first_length": 192, "low": 0, "high": None}
    main |= {"smooth": 202.7, "smooth_low": 0.0, "smooth_high": None}
    # lower limits at 0.5: (0.55 - 0.5) / (0.55 - 0.26) = 0.1724 of the way
    other = {"threshold": 0.5, "effective_length": 224, "first_length": 192, "low": 192, "high": None}
    other |= {"smooth": 224.0, "smooth_low": 197.5, "smooth_high": None}
    assert summary_record(probe, curve, about, counts) == {
        **about,
        **tests,
        **main,
        "f_at_effective_length": 32 + 8 + 1,  # f(192) of three segments
        "confidence": 0.95,
        "thresholds": [other, main],
        "tests": 20,
        "error": None,
        "seconds": 7.5,
    }
    sequential = make_probe(bpe, tests=60, sequential=True, thresholds=(0.5,), error=0.01)
    stops = {"tests": 60, "thresholds": [0.5, 0.8], "error": 0.01, "round": 3}
    assert length_record(sequential, curve[1], about, None)["stops"] == stops


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        # four numbers of three digits are 12 tokens at least
        pytest.param({"answer_budget": 4}, "probe.answer_budget=4: an answer of 4 numbers takes ", id="budget"),
        pytest.param(
            {"max_length": 64}, "probe.max_length=64: no multiple of probe.step=32 up to it has room", id="room"
        ),
    ],
)
def test_a_probe_without_room_is_one_line(bpe, settings, start):
    with pytest.raises(ConfigError) as caught:
        make_probe(bpe, **settings)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"needles": 3, "required": 4}, "required=4: must be <= needles=3; lower required"),
        ({"max_length": 100}, "max_length=100: must be >= step=128; lower step or raise max_length"),
        ({"threshold": 1.5}, "threshold=1.5: must be <= 1; Share of tests that must pass for a length to pass"),
        ({"tests": 0}, "tests=0: must be >= 1; Tests at each length"),
        ({"error": 0.01}, "error=0.01: would be ignored; leave it out, or set sequential to true"),
        (
            {"protocol": "released", "digits": 3},
            "digits=3: must be 6 in the released protocol; leave it out or use protocol: ours",
        ),
        (
            {"protocol": "released", "needles": 2},
            "needles=2: must be 4 in the released protocol; leave it out or use protocol: ours",
        ),
        (
            {"protocol": "released", "answer_budget": 64},
            "answer_budget=64: must be 128 in the released protocol; leave it out or use protocol: ours",
        ),
    ],
    ids=["required", "max_length", "threshold", "tests", "error", "digits", "needles", "budget"],
)
def test_a_config_that_cannot_be_passed_is_refused(settings, line):
    with pytest.raises(ConfigError) as caught:
        ProbeConfig(**settings)
    assert caught.value.faults == (line,)


def test_settings_that_are_left_out():
    config = ProbeConfig(tests=70, threshold=0.8, thresholds=(0.9, 0.5, 0.8))
    assert (config.round_size, config.error_rate, config.all_thresholds) == (4, 0.005, (0.5, 0.8, 0.9))
    config = ProbeConfig(sequential=True, error=0.0)
    assert (config.round_size, config.error_rate, config.all_thresholds) == (25, 0.0, (0.8,))


@pytest.mark.parametrize("protocol", ["ours", "released"])
def test_a_tokenizer_that_sets_digits_apart_is_refused(protocol):
    apart = Tokenizer(models.WordLevel({"[UNK]": 0, **{str(k): k + 1 for k in range(10)}}, unk_token="[UNK]"))
    apart.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    config = ProbeConfig(protocol=protocol, needles=4, digits=6)
    with pytest.raises(DataError) as caught:
        NeedleProbe(config, apart, "word " * 900, window=512, stop_id=None)
    line = r"tokenizer\.json: reads '\d{6}(, \d{6}){3}' back as '.*(\d ){5}\d.*', so that no answer could pass; give "
    assert re.fullmatch(line + "the model's own tokenizer", str(caught.value))
