"""Tests put to a function in place of a model."""

from types import SimpleNamespace

from eval.common.results import Results
from eval.common.retrieval import judge
from eval.common.running import run_tests


def answered(model, tokenizer, cases, folder, *, budget, rows, stop_id, judge=judge, started=None):
    subject = SimpleNamespace(generate=model, tokenizer=tokenizer, stop_id=stop_id, vocab_size=1 << 30)
    if started is None:
        (folder / "cases.jsonl").unlink(missing_ok=True)
        started = Results(folder / "cases.jsonl", ("test",))
    return run_tests(subject, cases.__getitem__, len(cases), judge, budget=budget, rows=rows, started=started)
