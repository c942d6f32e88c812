"""Tests put to a function in place of a model."""

from types import SimpleNamespace

from eval.common.results import Results
from eval.common.retrieval import run_cases


def answered(model, tokenizer, cases, folder, *, budget, rows, stop_id):
    subject = SimpleNamespace(generate=model, tokenizer=tokenizer, stop_id=stop_id, vocab_size=1 << 30)
    (folder / "cases.jsonl").unlink(missing_ok=True)
    started = Results(folder / "cases.jsonl", ("test",))
    return run_cases(subject, cases.__getitem__, len(cases), budget=budget, rows=rows, started=started)
