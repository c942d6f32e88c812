"""What the tests of eval.harness share: local tasks and its files."""

import torch

from eval.engine.subject import build_subject
from lab.loading import open_model
from tests.eval.commands import rows_in as read_lines
from tests.forked import ROOT

TASKS = ROOT / "tests/eval/harness_tasks"


def subject_of(folder):
    return build_subject(open_model(folder), folder, torch.device("cpu"))


def rows_in(folder, task, filtered=None):
    rows = [row for row in read_lines(folder / "harness.jsonl") if row["task"] == task]
    return {row["metric"]: row for row in rows if filtered in (None, row["filter"])}
