"""Run the miniatures of the papers' tables and record their cells, which the tests read.

    python -m tests.eval.papers.minis [TABLE ...]

Without names it runs those whose record is missing or of other settings.
"""

import hashlib
import json
import sys
from pathlib import Path

from eval.papers.__main__ import result_folder, run_table
from eval.papers.cells import compare_cells
from eval.papers.table import PLACEHOLDER, names, read_paper_table
from tests.forked import ROOT

RECORD = Path(__file__).with_name("minis.json")
TASKS = "tests/eval/harness_tasks"


def settings(name):
    """Name all that a miniature's cells depend on, but the code: its settings, commands, sweeps and tasks."""
    table = read_paper_table(name, mini=True)
    texts = [*table.evaluate, repr(table.rows), repr(table.columns)]
    for text in texts:  # which grows by the values that it names
        texts += [str(table.values[found]) for found in PLACEHOLDER.findall(text) if found in table.values]
    texts += [str(need.train) for need in table.requirements.values()]
    files = [ROOT / file for file in table.sweep]
    if any(TASKS in text for text in texts):
        files += sorted((ROOT / TASKS).glob("mini*"))
    texts += [file.read_text() for file in files]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def main(chosen):
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    stale = [name for name in names() if record.get(name, {}).get("settings") != settings(name)]
    for name in chosen or stale:
        table = read_paper_table(name, mini=True)
        rows, failures = run_table(table, result_folder(name, mini=True))
        if failures:
            return "\n".join(failures)
        shown = {}
        for cell in compare_cells(table, rows, mini=True):
            if cell["ours"] is not None:
                shown.setdefault(cell["row"], {})[cell["column"]] = round(cell["ours"], 4)
        record[name] = {"settings": settings(name), "cells": shown}
        lines = [f"{json.dumps(key)}: {json.dumps(record[key])}" for key in sorted(record)]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
