"""Passkey tests: their texts, models with known answers, and eval.passkey as a command."""

import re

import pytest
import torch

from eval.engine.answers import score_answer, summarize
from eval.engine.cases import Writer, finish
from eval.lines import main, sample_record_case
from eval.passkey import READERS, draft
from tests.eval.answering import Reader, answered
from tests.eval.commands import lines_of, runner, words_of

BUDGET, STOP = 12, 1
FILLER = " ".join(f"Sentence {k} has some words in it." for k in range(300))
GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
KEY = re.compile(r"The pass key is ([0-9]{5})\. Remember it\. \1 is the pass key\.")
NEEDLE = re.compile(r"One of the magic numbers is ([0-9]{3})\.")


def case_of(tokenizer, protocol="passkey", *, length=700, depth=0.5, seed=0, index=0):
    digits, filler = (5, "") if protocol == "passkey" else (3, FILLER)
    return finish(draft(digits, filler, depth, seed, index), Writer(tokenizer), length, BUDGET)


@pytest.fixture(params=["bpe", "bytewise"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_the_text_is_the_fields(tokenizer, depth):
    for index in range(4):
        case = case_of(tokenizer, depth=depth, index=index)
        task, before, key, after, question = case.prompt.split("\n")
        assert (task, question) == (TASK, "What is the pass key? The pass key is")
        assert KEY.fullmatch(key)[1] == case.answers[0]
        assert all((GARBAGE * 50).startswith(part) for part in (before, after))
        assert len(before) == round(depth * (len(before) + len(after)))
        assert len(case.prompt_ids) + BUDGET == 700
        assert tokenizer.decode(case.prompt_ids.tolist()) == case.prompt


def test_a_test_has_its_key_at_every_length_and_depth(bpe):
    first = case_of(bpe).answers
    assert case_of(bpe, length=900, depth=0.1).answers == first
    assert len({case_of(bpe, index=k).answers for k in range(20)} | {case_of(bpe, seed=1).answers}) == 21


def say_key(pattern):
    """Answer with the key that is whole in the text."""
    return lambda text: f" {match[1]}. I have seen 12." if (match := pattern.search(text)) else " I do not know."


@pytest.mark.parametrize(("protocol", "pattern"), [("passkey", KEY), ("lab", NEEDLE)])
def test_a_reader_of_the_last_tokens_finds_the_keys_that_lie_there(tokenizer, protocol, pattern, tmp_path):
    """A key at depth d of u units of filler is seen when the text after its first letter fits."""
    seen = 450
    reader = Reader(tokenizer, seen, say_key(pattern))
    scores = []
    for depth in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        cases = [case_of(tokenizer, protocol, length=1000, depth=depth, index=k) for k in range(6)]
        outcome = answered(reader, tokenizer, cases, tmp_path, budget=BUDGET, rows=4, stop_id=STOP)
        rest = [case.prompt[pattern.search(case.prompt).start() :] for case in cases]
        inside = [len(tokenizer.encode(text, add_special_tokens=False).ids) <= seen for text in rest]
        assert [record["passed"] for record in outcome.records] == inside
        scores.append(summarize(outcome)["score"])
    assert (scores[0], scores[-1], scores) == (0, 1, sorted(scores))


def test_limits_are_exact_and_what_comes_after_the_end_is_not_read(bytewise, tmp_path):
    cases = [case_of(bytewise, index=k) for k in range(10)]

    def model(prompts, n_tokens):
        right = [bytewise.encode(case.answers[0]).ids for case in cases]
        rows = [bytewise.encode("no").ids if k in (3, 7) else ids for k, ids in enumerate(right)]
        return torch.tensor([([*row, STOP, *ids] + [STOP] * 20)[:n_tokens] for row, ids in zip(rows, right)])

    outcome = answered(model, bytewise, cases, tmp_path, budget=BUDGET, rows=16, stop_id=STOP)
    result = summarize(outcome)
    assert (result["passed"], result["score"]) == (8, 0.8)
    assert (round(result["low"], 4), round(result["high"], 4)) == (0.4439, 0.9748)  # Clopper, Pearson's of 8 in 10


def test_only_the_whole_number_passes_and_only_in_front(bytewise):
    case = case_of(bytewise)
    for said, passes in {"{}": True, " is {}. 7": True, "1{}": False, "{}0": False, "7 or {}": False}.items():
        assert score_answer(case, said.format(case.answers[0]))["passed"] == passes, said
    said = f"It is {int(case.answers[0]):,}."  # which the protocol of the lab alone reads as one number
    assert [score_answer(case, said, READERS[name])["passed"] for name in ("passkey", "lab")] == [False, True]


LINE = re.compile(r"^line ([a-z]+-[a-z]+): REGISTER_CONTENT is <([0-9]+)>$", re.MULTILINE)
QUESTION = re.compile(
    r"\nNow the record is over\. Tell me what is the <REGISTER_CONTENT> in line (\S+)\? I need the number\."
)


@pytest.mark.parametrize("protocol", ["longeval", "completion"])
def test_the_record_holds_the_answer_once(tokenizer, protocol):
    places = []
    for index in range(12):
        case = sample_record_case(Writer(tokenizer), protocol, lines=30, seed=2, index=index)
        assert case.prompt.startswith("Below is a record of lines I want you to remember. Each line begins with")
        pairs = LINE.findall(case.prompt)
        assert len(dict(pairs)) == len(pairs) == len({number for _, number in pairs}) == 30
        assert all(1 <= int(number) <= 50_000 for _, number in pairs)
        asked = QUESTION.search(case.prompt)[1]
        assert case.answers == (dict(pairs)[asked],)
        ending = "" if protocol == "longeval" else f"\nThe <REGISTER_CONTENT> in line {asked} is <"
        assert case.prompt.endswith(f"in line {asked}? I need the number.{ending}")
        assert (case.facts["lines"], pairs[case.facts["line"]][0]) == (30, asked)
        places.append(case.facts["line"])
    assert len(set(places)) > 6
    assert (min(places) < 10, max(places) > 20) == (True, True)


def test_a_length_is_filled_with_lines(hugging_face_folder, bpe, tmp_path, capsys):
    words = [hugging_face_folder, "--lengths=700,1100", "--tests=2", "-o", tmp_path]
    status, out, _ = runner(main)(words, capsys)
    assert status == 0
    rows = lines_of(tmp_path, "lines")
    for row, length in zip(rows, (700, 1100), strict=True):
        room, held = length - row["answer_budget"], []
        for index in range(2):
            cases = [sample_record_case(Writer(bpe), "longeval", lines=n, seed=0, index=index) for n in range(2, 60)]
            held.append(1 + sum(len(case.prompt_ids) <= room for case in cases))
        assert row["lines"] == {"least": min(held), "most": max(held)}
        assert (row["asked"], room - 40 < row["prompt_tokens"]["most"] <= room) == (length, True)
    assert [str(rows[0]["lines"]["most"]), str(rows[0]["length"]), "0.0", "0.0", "to", "84.2"] in words_of(out)
