import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from lab.core.errors import DataError
from lab.counts import PositionCounts
from lab.probe import probe as probe_module
from lab.probe.config import ProbeConfig
from lab.probe.effective_length import NeedleProbe
from lab.probe.limits import LengthResult
from lab.probe.needles import NeedleCase
from lab.probe.probe import Worker
from lab.probe.reach import effective_lengths

HAYSTACK = " ".join(f"bake{'.' if k % 7 == 6 else ''}" for k in range(4000))
STOP = 1


class Oracle:
    """Reads the numbers off the prompt; `answer` is given for each length. It stops when told so where it `obeys`."""

    def __init__(self, tokenizer, answer, *, obeys=False):
        self.tokenizer, self.answer, self.obeys, self.calls, self.tokens = tokenizer, answer, obeys, 0, 0

    def generate(self, prompts, n_tokens, ended=None):
        self.calls += 1
        rows = []
        for prompt in prompts.tolist():
            numbers = re.findall(r"One of the magic numbers is ([0-9]+)\.", self.tokenizer.decode(prompt))
            text = self.answer(prompts.shape[1] + n_tokens, numbers)
            rows.append((self.tokenizer.encode(text, add_special_tokens=False).ids + [STOP] * n_tokens)[:n_tokens])
        rows = torch.tensor(rows)
        for n in range(1, n_tokens):
            self.tokens += 1
            if self.obeys and bool(ended(rows[:, :n], torch.arange(len(rows))).all()):
                return rows[:, :n]
        return rows


def right_up_to(longest):
    return lambda length, numbers: " " + ", ".join(numbers) + "." if length <= longest else " 0, 0 and 0."


def make_probe(bpe, **settings):
    values = {"tests": 6, "step": 32, "max_length": 384, "needles": 4, "digits": 3, "answer_budget": 24, "seed": 3}
    config = ProbeConfig(**values | settings)
    return NeedleProbe(config, bpe, HAYSTACK, window=96, stop_id=STOP)


def results(probe, answer):
    return list(probe.run(Oracle(probe.tokenizer, answer)))


@pytest.mark.parametrize("longest", [192, 256, 352, 384])
def test_effective_length_is_where_the_oracle_ends(bpe, longest):
    probe = make_probe(bpe)
    curve = results(probe, right_up_to(longest))
    assert [r.accuracy for r in curve] == [1.0 if r.length <= longest else 0.0 for r in curve]
    assert effective_lengths(curve, 0.8)["effective_length"] == longest


def test_probe_stops_at_the_first_failure_without_max_length(bpe):
    probe = make_probe(bpe, max_length=None)
    assert probe.lengths[-1] == 384  # four windows of 96 at the most
    curve = results(probe, right_up_to(256))
    assert [r.length for r in curve] == [length for length in probe.lengths if length <= 288]
    assert [r.accuracy for r in curve][-2:] == [1.0, 0.0]


@pytest.mark.parametrize(("max_length", "lengths_of_each"), [(384, 2), (None, 8)], ids=["all", "until_one_fails"])
def test_ranks_divide_lengths_so_that_each_generates_for_few(bpe, max_length, lengths_of_each):
    """The ranks run side by side, as threads that join their rows where processes would."""
    barrier, parts = threading.Barrier(4, timeout=240), [[]] * 4

    def run(rank):
        def gather(rows):
            parts[rank] = rows
            barrier.wait()
            joined = [row for part in parts for row in part]
            barrier.wait()
            return joined

        model = Oracle(bpe, right_up_to(384))
        found = list(make_probe(bpe, tests=8, max_length=max_length).run(model, Worker(rank, 4, gather)))
        return found, model.calls

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    alone = results(make_probe(bpe, tests=8, max_length=max_length), right_up_to(384))
    assert found == [(alone, lengths_of_each)] * 4


def test_the_records_of_a_probe(bpe):
    probe = make_probe(bpe, tests=10, max_length=224)
    curve = [LengthResult(192, 10, 9, [], 0.55, 0.99), LengthResult(224, 10, 6, [], 0.26, 0.88, 7.5)]
    about = {"model": "m", "consumed_tokens": 4096, "method": "rope+plain"}
    tests = {"protocol": "ours", "needles": 4, "digits": 3, "required": 2, "answer_budget": 24, "seed": 3}
    tests["haystack"] = hashlib.sha256(HAYSTACK.encode()).hexdigest()[:16]
    counts = PositionCounts(224)
    counts.add_segments([224, 200, 193])
    line = probe.record(curve[1], about, counts)
    assert line.items() >= {**about, **tests, "length": 224, "tests": 10, "passed": 6, "seconds": 7.5}.items()
    names = ("accuracy", "score", "low", "high", "f")  # 224 is beyond the counter
    assert [line[name] for name in names] == [0.6, 0.6, 0.26, 0.88, None]
    # smooth: a third of the way from 192 to 224 for 0.8
    main = {"threshold": 0.8, "effective_length": 192, "low": 0, "high": None, "first_length": 192, "last_length": 224}
    main |= {"smooth": 202.7, "smooth_low": 0.0, "smooth_high": None}
    summary = probe.summarize(curve, about, counts)
    assert summary.items() >= {**about, **tests, **main, "tests": 20}.items()
    assert summary["f_at_effective_length"] == 32 + 8 + 1  # f(192) of three segments


@pytest.mark.parametrize("protocol", ["ours", "released"])
def test_a_tokenizer_that_sets_digits_apart_is_refused(protocol):
    apart = Tokenizer(models.WordLevel({"[UNK]": 0, **{str(k): k + 1 for k in range(10)}}, unk_token="[UNK]"))
    apart.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    config = ProbeConfig(protocol=protocol, needles=4, digits=6)
    line = r"^tokenizer\.json: reads '\d{6}(, \d{6}){15}' back as '.*(\d ){5}\d.*', .*; "
    with pytest.raises(DataError, match=line):
        NeedleProbe(config, apart, "word " * 900, window=512, stop_id=None)


AFTER = [".", " and 5 more", "7", " 77.", ", 12", "\n", ",123", " 456,", "_4", "{,}123"]


def probed(bpe, answer, *, obeys):
    probe = make_probe(bpe, tests=3, max_length=224, batch=2, answer_budget=40)
    model = Oracle(bpe, answer, obeys=obeys)
    return [case for result in probe.run(model) for case in result.cases], model.tokens


@pytest.mark.parametrize("ending", AFTER, ids=repr)
def test_scores_and_texts_do_not_depend_on_where_generation_stopped(bpe, monkeypatch, ending):
    def answers(length, numbers):  # longer than the budget
        return (" " + ", ".join(numbers) + ending + " and so on") * 9

    monkeypatch.setattr(probe_module, "LOOK_EVERY", 4)  # the budget leaves few tokens after the numbers
    stopped, fewer = probed(bpe, answers, obeys=True)
    whole, all_tokens = probed(bpe, answers, obeys=False)
    assert stopped == whole
    assert (fewer < all_tokens) == (stopped[0]["found"] == 4)
    monkeypatch.setattr(NeedleProbe, "is_decided", lambda probe, case, text: False)
    plain, _ = probed(bpe, answers, obeys=True)
    for mine, theirs in zip(stopped, plain, strict=True):
        assert theirs["answer"].startswith(mine["answer"])
        assert {**mine, "answer": ""} == {**theirs, "answer": ""}


def test_every_number_is_judged_on_its_own(bpe):
    case = NeedleCase([1], ["12", "345", "678"], [0.1, 0.4, 0.7], [9, 6, 3])
    answer = " 345 and 6789, 112."
    sizes = {"digits": 6, "step": 256, "max_length": 512, "answer_budget": 128}
    for settings, expected in (({}, [False, True, False]), ({"protocol": "released", **sizes}, [True, True, True])):
        ((_, row),) = make_probe(bpe, **settings).score_answers(None, [(0, case, answer)])
        assert row["found_each"] == expected
