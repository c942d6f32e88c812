"""The papers' tables: every file and command line is right, and what is printed of known results."""

import json
import re
import subprocess
import sys
import time

import pytest

from eval.papers import __main__ as running
from eval.papers.__main__ import RESULT, main, measured_rows, result_folder
from eval.papers.cells import compare_cells, table_text
from eval.papers.table import names, needs, read_paper_table
from lab.config.settings import nest
from lab.core.arguments import parse_overrides
from lab.core.schema import validated
from lab.positions.methods import PositionConfig
from tests.eval.commands import runner
from tests.eval.papers.minis import RECORD, settings
from tests.eval.test_measures import main_of
from tests.forked import ROOT

COUNTED = {"string": (7, 9), "dca": (7, 8), "longrecipe": (6, 4), "entropy_abf": (5, 3), "anchor": (12, 8)}
NEEDS_NO_MODEL = ("eval.frequency", "eval.positions")
command = runner(main)
BUSY = r"  elsewhere$|is in use by process"  # another worker of the tests trains what both tables need
ABSENT = ("no such folder", "no such file", "is not a run folder", "matches no folder")


def test_every_table_and_figure_has_a_file_or_a_reason():
    wanted = {f"{paper}/table{n + 1}" for paper, (tables, _) in COUNTED.items() for n in range(tables)}
    wanted |= {f"{paper}/figure{n + 1}" for paper, (_, figures) in COUNTED.items() for n in range(figures)}
    whole = {name.rstrip("ab") for name in names()}
    page = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    reasons = page.split("| without a command | why |")[1:]
    left_out = {name for reason in reasons for name in re.findall(r"\n\| (\w+/\w+) \|", reason.partition("\n## ")[0])}
    assert whole | left_out == wanted
    assert not whole & left_out
    assert [name for name in names() if f"\n| {name} |" not in page] == []
    assert [name for name, need in needs().items() if need.train is None and f"\n| {name} " not in page] == []
    for table in map(read_paper_table, names()):
        assert all({*row} <= {*table.columns} for row in (*table.published.values(), table.mini.columns))


@pytest.fixture
def empty_place(tmp_path, monkeypatch):
    """A folder with the repository's own files and no models, data or runs."""
    for name in ("tests", "configs", "sweeps"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mini", [False, True], ids=["full", "mini"])
@pytest.mark.parametrize("paper", COUNTED)
def test_every_command_parses_up_to_the_missing_model(paper, mini, empty_place, monkeypatch, capsys):
    monkeypatch.setattr(running, "plan_sweep", lambda *_: [])
    monkeypatch.setattr(running, "models", lambda *_: [{"model": "runs/absent"}] if "run" in _[2] else [{}])
    for name in [name for name in names() if name.startswith(f"{paper}/")]:
        for one in measured_rows(read_paper_table(name, mini=mini), empty_place / "out"):
            for words in one.commands:
                command_main = main_of(words[0].removeprefix("eval."))
                if words[0] in NEEDS_NO_MODEL:
                    assert command_main(["--help"]) == 0, words
                    continue
                positions = [word.replace("position.", "") for word in words if word.startswith("--position.")]
                validated(PositionConfig, nest(parse_overrides(positions)))  # later than the others, with the model's
                status = command_main(list(words[1:]))
                faults = capsys.readouterr().err.splitlines()
                assert (status, len(faults)) == (2, 1), (words, faults)
                assert any(text in faults[0] for text in ABSENT), (words, faults)
                assert words[1] in faults[0], (words, faults)


def test_ours_beside_theirs(tmp_path):
    table = read_paper_table("string/table1", mini=True)
    (one,) = measured_rows(table, tmp_path)
    one.values["out"].mkdir()
    rows = [{"compared_as": "rope", "score": 0.5}, {"compared_as": "rope", "score": 0.75, "seed": 1}]
    rows += [{"compared_as": "string", "score": 0.25, "commit": "old"}, {"compared_as": "string", "score": 0.5}]
    (one.values["out"] / "probe-a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mini = {cell["column"]: cell for cell in compare_cells(table, [one], mini=True)}
    assert (mini["RoPE"]["ours"], mini["STRING"]["ours"]) == (62.5, 50.0)  # the mean; the newest of one measurement
    assert (mini["RoPE"]["theirs"], mini["RoPE"]["difference"], mini["RoPE"]["scale"]) == (56.6, None, "mini")
    cells = compare_cells(table, [one], mini=False)
    (rope,) = (cell for cell in cells if cell["ours"] == 62.5)
    assert rope["difference"] == pytest.approx(62.5 - 56.6)
    assert len(cells) == 7 * 7  # rows of the paper that were not run are shown, too
    assert "62.5 [56.6] +5.9" in table_text(table, cells, mini=False)
    assert "another scale" in table_text(table, list(mini.values()), mini=True)


def test_what_is_missing_is_named_in_one_line_each(empty_place, capsys):
    assert read_paper_table("dca/figure4").missing_files == [
        "llama-2-7b: models/llama-2-7b is missing; get meta-llama/Llama-2-7b-hf",
        "pg19: data/pg19 is missing; get deepmind/pg19, split validation",
    ]
    assert command("dca/figure4", capsys)[0] == 2
    status, _, fault = command("string/tabel1", capsys)
    assert (status, fault) == (2, "TABLE=string/tabel1: no such table with a command; did you mean string/table1?\n")
    status, out, _ = command("anchor/figure1 --mini --dry_run", capsys)
    assert status == 0
    assert "probe-lab precision runs/papers_base" in out


def test_a_row_that_fails_leaves_the_others_printed_and_finished(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("eval.papers.table.HOME", tmp_path)
    monkeypatch.setattr("eval.papers.table.names", lambda: ["string/table1"])
    monkeypatch.setattr("eval.papers.table.needs", dict)
    mini = {"note": "none", "rows": {"bad": {"skip": "string"}, "good": {"skip": "rpes"}}}
    text = "eval.positions {skip} --n_tokens=8 --target_len=16 --samples=2 -o {out}"
    column = {"file": "positions-*.jsonl", "field": "mean_run_length", "where": {"name": "{skip}"}}
    table = {"title": "t", "source": "s", "evaluate": [text], "columns": {"run": column}, "published": {}, "mini": mini}
    (tmp_path / "string").mkdir()
    file = tmp_path / "string/table1.yaml"
    file.write_text(json.dumps(table))  # JSON is YAML
    words = f"string/table1 --mini -o {tmp_path / 'out'}"
    status, out, errors = command(words, capsys)
    assert status == 1
    assert re.search(r"\ngood +[\d.]+\n", out)
    assert "bad" not in out
    line = errors.splitlines()[-1]
    assert re.match(r"bad: probe-lab positions string .* ended with status 2: --length: must be set", line)
    assert command(words, capsys)[0] == 1  # what failed is not finished
    mini["rows"]["bad"]["skip"] = "pose"
    file.write_text(json.dumps(table))
    status, out, errors = command(words, capsys)
    assert status == 0
    assert re.search(r"\nbad +[\d.]+\ngood +[\d.]+\n", out)
    assert errors.count("probe-lab positions") == 1  # the row that failed, and no other


@pytest.mark.parametrize("name", names())
def test_a_miniature_can_fail_and_can_succeed(name):
    table, record = read_paper_table(name, mini=True), json.loads(RECORD.read_text())[name]
    assert record["settings"] == settings(name), f"python -m tests.eval.papers.minis {name}"
    assert {*record["cells"]} == {*table.rows}
    shares = {column for column, place in table.columns.items() if place.times == 100}
    found = [cell for row in record["cells"].values() for column, cell in row.items() if column in shares]
    assert any(10 <= cell <= 90 for cell in found) == bool(shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_miniature_runs(name):
    words = [sys.executable, "-m", "eval.papers", name, "--mini"]
    for _ in range(60):
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=1200)
        if done.returncode == 0 or not re.search(BUSY, done.stderr, re.MULTILINE):
            break
        time.sleep(10)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((ROOT / result_folder(name, mini=True) / RESULT).read_text()), "no results were read"
