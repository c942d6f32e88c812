"""Tests put to a function in place of a model."""

from types import SimpleNamespace

import torch

from eval.engine.answers import judge, run_tests
from eval.engine.rows import Results


def answered(model, tokenizer, cases, folder, *, budget, rows, stop_id, judge=judge, started=None):
    subject = SimpleNamespace(generate=model, tokenizer=tokenizer, stop_id=stop_id, vocab_size=1 << 30)
    if started is None:
        (folder / "cases.jsonl").unlink(missing_ok=True)
        started = Results(folder / "cases.jsonl", ("test",))
    return run_tests(subject, cases.__getitem__, len(cases), judge, budget=budget, rows=rows, started=started)


class Reader:
    """Sees the last tokens of a prompt, and answers what `say` makes of their text, then the token that ends it."""

    def __init__(self, tokenizer, seen, say, stop_id=1):
        self.tokenizer, self.seen, self.say, self.stop_id = tokenizer, seen, say, stop_id

    def __call__(self, prompts, n_tokens, ended=None):
        rows = []
        for prompt in prompts[:, -self.seen :].tolist():
            ids = self.tokenizer.encode(self.say(self.tokenizer.decode(prompt)), add_special_tokens=False).ids[
                :n_tokens
            ]
            rows.append(ids + [self.stop_id] * (n_tokens - len(ids)))
        return torch.tensor(rows)
