"""Tests put to a function in place of a model."""

from types import SimpleNamespace

from eval.common.appended import StartedCell
from eval.common.retrieval import run_cases


def answered(model, tokenizer, cases, folder, *, budget, rows, stop_id):
    subject = SimpleNamespace(generate=model, tokenizer=tokenizer, stop_id=stop_id, vocab_size=1 << 30)
    StartedCell.part(folder / "cases.jsonl").unlink(missing_ok=True)
    started = StartedCell(folder / "cases.jsonl")
    return run_cases(subject, cases.__getitem__, len(cases), budget=budget, rows=rows, started=started)
