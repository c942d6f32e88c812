"""What the tests of eval.harness share: its model on a small decoder, loops by definition, local tasks, its files."""

import json
from pathlib import Path

import pytest
import torch

from eval.engine.subject import build_subject
from eval.harness.__main__ import HarnessOptions
from eval.harness.model import harness_model
from lab.loading import open_model

ROOT = Path(__file__).resolve().parents[3]
TASKS = ROOT / "tests/eval/harness_tasks"


def subject_of(folder):
    return build_subject(open_model(folder), folder, torch.device("cpu"))


def make_model(subject, folder=Path("none"), **options):
    pytest.importorskip("lm_eval")
    defaults = {"tasks": (), "max_length": 64, "batch": 3}
    return harness_model(subject, folder, HarnessOptions(**{**defaults, **options}))


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, args, number, ("t", number, 1)) for number, args in enumerate(arguments)]


def asked(model, kind, arguments):
    """Send requests through the harness's interface."""
    return getattr(model, kind)(instances(kind, arguments))


def encoded(subject, text):
    return subject.tokenizer.encode(text).ids  # <bos> before, nothing after


def by_loop(subject, inputs, targets):
    """The log-likelihood and the greedy flag, one prefix at a time, without batches or shared passes."""
    nats, likeliest, seen = 0.0, True, list(inputs)
    for target in targets:
        with torch.no_grad():
            logits = subject.model.decoder(torch.tensor([seen]))[0, -1].double()
        nats += float(torch.log_softmax(logits, -1)[target])
        likeliest = likeliest and int(logits.argmax()) == target
        seen.append(target)
    return nats, likeliest


def greedy_loop(subject, ids, budget):
    """The most likely tokens after some, one prefix at a time, before the first one that ends a document."""
    answer = []
    while len(answer) < budget:
        with torch.no_grad():
            answer.append(int(subject.model.decoder(torch.tensor([[*ids, *answer]]))[0, -1].argmax()))
        if answer[-1] == subject.stop_id:
            return answer[:-1]
    return answer


def documents(name):
    return read_lines(TASKS / f"{name}.jsonl")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_in(folder, task, filtered=None):
    rows = [row for row in read_lines(folder / "harness.jsonl") if row["task"] == task]
    return {row["metric"]: row for row in rows if filtered in (None, row["filter"])}
