"""Tests put to a function in place of a model."""

from types import SimpleNamespace

import torch

import eval.engine.subject
from eval.engine.answers import score_answer
from eval.engine.run import Cell, Measure
from lab.results.store import Store


def answered(model, tokenizer, cases, folder, *, budget, rows, stop_id, judge=score_answer):
    for file in folder.glob("none-*.jsonl"):
        file.unlink()
    measure = object.__new__(Measure)
    measure.kind, measure.stores = "none", [Store(folder, "none", {})]
    measure.subject = SimpleNamespace(generate=model, tokenizer=tokenizer, stop_id=stop_id, vocab_size=1 << 30)
    measure.options = SimpleNamespace(rows=lambda length: rows)
    measure.bar = SimpleNamespace(update=lambda tests: None, count_finished=lambda tests: None)
    cell = Cell({}, len(cases), 0, "")
    return measure.ask(cell, cases.__getitem__, budget=budget, judge=judge)


class Reader:
    """Sees the last tokens of a prompt, and answers what `say` makes of their text, then the token that ends it."""

    def __init__(self, tokenizer, seen, say, stop_id=1):
        self.tokenizer, self.seen, self.say, self.stop_id, self.prompts = tokenizer, seen, say, stop_id, 0

    def generate(self, prompts, n_tokens, ended=None):
        self.prompts += len(prompts)
        rows = []
        for prompt in prompts[:, -self.seen :].tolist():
            said = self.tokenizer.encode(self.say(self.tokenizer.decode(prompt)), add_special_tokens=False).ids
            rows.append((said + [self.stop_id] * n_tokens)[:n_tokens])
        return torch.tensor(rows)

    __call__ = generate


def silent(decoder, prompts, n_tokens, stop_id, **options):
    """Answer nothing, without a model."""
    return torch.full((len(prompts), n_tokens), stop_id)


class Counted:
    """Counts the prompts that go through a model, and stops it after some."""

    def __init__(self, monkeypatch, stop_after=None, greedy=None):
        self.prompts, self.stop_after, self.greedy = 0, stop_after, greedy or eval.engine.subject.greedy
        monkeypatch.setattr(eval.engine.subject, "greedy", self)

    def __call__(self, decoder, prompts, *rest, **options):
        if self.stop_after is not None and self.prompts >= self.stop_after:
            raise KeyboardInterrupt
        self.prompts += len(prompts)
        return self.greedy(decoder, prompts, *rest, **options)
