"""What the commands at full size measure: words that a row's command lines have, and words that they have not."""

import re
import shlex
from pathlib import Path

import pytest

from eval.papers import __main__ as running
from eval.papers.__main__ import measured_rows
from eval.papers.table import names, read_table

TEMPLATES = "--chat_template=eval/papers/templates/"
LONGBENCH = ("table2", "table4", "table5", "figure2", "figure3")
PLANS = [  # table, pattern of rows, command, words in it, words not in it
    ("dca/table1", "", "perplexity", "--protocol=whole-windows", "--documents"),
    ("dca/table1", "7B", "perplexity", "--stride=256", "--stride=2048"),
    ("dca/table2", "7B", "perplexity --lengths=4096,32768,65536,98304", "--stride=256", ""),
    ("dca/table2", "", "perplexity --lengths=131072", "--protocol=whole-windows --stride=65536", ""),
    ("string/table2", "Qwen2 (72B) + STRING", "ruler", "factor=2. method=string", ""),
    ("string/table2", "100K", "ruler", "--lengths=102400 shift=34133", ""),
    ("string/table2", "Llama3.1", "ruler", TEMPLATES + "llama3.jinja", "--apply_chat_template"),
    ("string/table3", "", "harness", "completion_passkey --include_path=eval/papers/infinitebench", "chat_template"),
    ("dca/table4", "Vicuna", "harness", TEMPLATES + "vicuna.jinja", "--apply_chat_template"),
    ("dca/table4", "Chunk", "harness", "--apply_chat_template", "vicuna"),
    *[(f"entropy_abf/{name}", "", "harness trec", "triviaqa samsum", "chat_template") for name in LONGBENCH],
    *[(f"entropy_abf/{name}", "Ours", "harness hotpotqa", "--apply_chat_template", "trec") for name in LONGBENCH],
    ("entropy_abf/table2", "Llama2", "harness hotpotqa", "--max_length=3500 llama2.jinja", "--apply_chat_template"),
    ("entropy_abf/table4", "-16K", "harness", "--max_length=15500", ""),
    ("entropy_abf/table3", "Share1k", "harness", "--apply_chat_template", ""),
    ("longrecipe/table1", "Qwen2-7B 80k:", "ruler", "niah_multivalue cwe qa_2", "vt"),
    ("anchor/table6", "", "ruler", "8192,4000 --words=wonderwords", "4096"),
]


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """List the command lines of a table's rows, by row, at full size."""
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    monkeypatch.setattr(running, "plan", lambda *_: [])
    monkeypatch.setattr(running, "models", lambda *_: [{"model": "runs/absent"}] if "run" in _[2] else [{}])

    def found(name):
        rows = measured_rows(read_table(name), tmp_path)
        return {one.row: [shlex.join(words[:-2]) for words in one.commands] for one in rows}

    return found


@pytest.mark.parametrize(("name", "rows", "command", "inside", "outside"), PLANS)
def test_what_a_row_asks_for(name, rows, command, inside, outside, lines):
    measure, *needed = command.split()
    chosen = [
        line
        for row, each in lines(name).items()
        for line in each
        if rows in row and f"eval.{measure} " in line and all(word in line for word in needed)
    ]
    assert chosen
    for line in chosen:
        assert [word for word in inside.split() if word not in line] == [], line
        assert [word for word in outside.split() if word in line] == [], line


def test_no_table_reads_ruler_at_lengths_of_no_model(lines):
    """The anchor paper's 4K is 4,000 tokens, and LongRecipe's 80k and 128k are 80,000 and 128,000."""
    each = {(name, line) for name in names() for row in lines(name).values() for line in row if "eval.ruler" in line}
    lengths = {(name, length) for name, line in each for length in re.search(r"--lengths=(\S+)", line)[1].split(",")}
    assert "81920" not in {length for _, length in lengths}
    assert {name for name, length in lengths if length == "4096"} == {"anchor/table11"}
