"""Answers that end where their score is decided: the same scores, the same text wherever generation stopped."""

import pytest
import torch

from lab.probe import probe as probe_module
from lab.probe.effective_length import NeedleProbe
from lab.probe.needles import NeedleCase
from tests.probe.test_effective_length import make_probe

AFTER = [".", " and 5 more", "7", " 77.", ", 12", "\n", ",123", " 456,", "_4", "{,}123"]


class Streams:
    """Answers token by token with texts of the numbers asked for, and stops when told so where it `obeys`."""

    def __init__(self, probe, answers, *, obeys):
        self.tokenizer, self.answers, self.obeys, self.tokens = probe.tokenizer, answers, obeys, 0

    def generate(self, prompts, n_tokens, ended):
        rows = torch.tensor([self.ids(prompt, n_tokens) for prompt in prompts.tolist()])
        for n in range(1, n_tokens):
            self.tokens += 1
            if self.obeys and bool(ended(rows[:, :n], torch.arange(len(rows))).all()):
                return rows[:, :n]
        return rows

    def ids(self, prompt, n_tokens):
        numbers = [part.split(".")[0] for part in self.tokenizer.decode(prompt).split("numbers is ")[1:]]
        ids = self.tokenizer.encode(self.answers(numbers), add_special_tokens=False).ids
        return (ids * n_tokens)[:n_tokens]


def probed(bpe, answers, *, obeys):
    probe = make_probe(bpe, tests=3, max_length=224, batch=2, answer_budget=40)
    model = Streams(probe, answers, obeys=obeys)
    return [case for result in probe.run(model) for case in result.cases], model.tokens


@pytest.mark.parametrize("ending", AFTER, ids=repr)
def test_scores_and_texts_do_not_depend_on_where_generation_stopped(bpe, monkeypatch, ending):
    def answers(numbers):
        return " " + ", ".join(numbers) + ending + " and so on"

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
    assert make_probe(bpe).score_answer(case, answer)["found_each"] == [False, True, False]
    sizes = {"digits": 6, "step": 256, "max_length": 512, "answer_budget": 128}
    assert make_probe(bpe, protocol="released", **sizes).score_answer(case, answer)["found_each"] == [True, True, True]
