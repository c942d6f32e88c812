import json
import lzma
import tracemalloc

import numpy as np
import pytest

from eval.compare import main as compare
from eval.reach import main as reach
from eval.report.__main__ import main as report
from eval.report.frames import read_runs
from lab.analysis.table import pack, unpacked
from lab.core.errors import DataError
from lab.runs.folder import RunFolder
from tests.eval.report.fakes import PLAIN, evaluate, one, write_fake
from tests.opened import sealed


def test_runs_in_a_table_are_read_as_their_folders_are(tmp_path):
    runs = [write_fake(tmp_path / name, seed=k) for k, name in enumerate("ba")]
    for run in runs:
        evaluate(run, [one(20, 0.9) | PLAIN])
        RunFolder(run / "eval").write_records("tests-0a.jsonl", [{"key": {}}])
    table, other = tmp_path / "two.jsonl.xz", write_fake(tmp_path / "c", seed=2)
    pack(runs, table)
    with unpacked([table, other]) as places:
        assert [place.name for place in places] == ["c", "a", "b"]
        files = {path.relative_to(places[1]).as_posix() for path in places[1].rglob("*.*")}
        folders, found = read_runs(sorted([other, *runs])), read_runs(places)
        f = np.load(places[1] / "counts.npz")["f"]
        assert f.tolist() == np.load(runs[1] / "counts.npz")["f"].tolist()
    assert not places[1].exists()
    assert "eval/tests-0a.jsonl" not in files
    assert {"config.yaml", "environment.json", "probes.jsonl", "counts.npz"} < files
    for kind in ("runs", "probes", "reaches", "distances", "frequency"):
        place = ["file", "base", "written"]
        left, right = (getattr(each, kind).drop(columns=place, errors="ignore") for each in (folders, found))
        left, right = (table.sort_values("run", kind="stable") for table in (left, right))
        assert left.to_csv(index=False) == right.to_csv(index=False)


def test_a_run_whose_record_ends_early_is_rejected(tmp_path, capsys):
    run = write_fake(tmp_path / "a", seed=0)
    sealed(run)
    lines = (run / "probes.jsonl").read_text().splitlines(keepends=True)
    (run / "probes.jsonl").write_text("".join(lines[:-1]))
    for command, options in ((report, ["-o", str(tmp_path / "a.html")]), (reach, []), (compare, [])):
        assert command([str(run), *options]) == 2
        assert capsys.readouterr().err.startswith(f"{run / 'probes.jsonl'}: has ")


ROW = {"run": "r", "file": "probes.jsonl", "row": {"a": 1}}
TEXT = {"run": "r", "file": "config.yaml", "text": "a: 1\n"}
HOSTILE = {  # lines of a table, of which {place} is outside the folder that it is written to
    "absolute_run": [{**ROW, "run": "{place}"}],
    "run_above": [{**ROW, "run": "../../../{place}"}],
    "run_of_two": [{**ROW, "run": "a/b"}],
    "nul": [{**ROW, "run": "a\0b"}],
    "long": [{**ROW, "run": "x" * 300}],
    "absolute_file": [{**ROW, "file": "{place}/probes.jsonl"}],
    "file_above": [{**ROW, "file": "eval/../../../../../../../../../../{place}/probes.jsonl"}],
    "arrays_above": [{"run": "r", "file": "{place}/counts.npz", "arrays": {"f": [1]}}],
    "text_above": [{**TEXT, "file": "{place}/config.yaml"}],
    "row_in_text": [TEXT, {**ROW, "file": "config.yaml"}],
    "arrays_twice": [{"run": "r", "file": "counts.npz", "arrays": {"f": [n]}} for n in (1, 2)],
    "nested": ['{"run": "r", "file": "a.jsonl", "row": ' + "[" * 100_000],
    "no_object": [[]],
    "no_table": b"no table",
    "cut": b"\xfd7zXZ\x00",
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE)
def test_a_table_writes_nothing_but_files_of_runs_in_its_folder(tmp_path, monkeypatch, capsys, lines):
    table, place, temporary = tmp_path / "x.jsonl.xz", tmp_path / "outside", tmp_path / "a" / "b"
    temporary.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    content = lines
    if isinstance(lines, list):
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        content = lzma.compress(text.replace("{place}", str(place)).encode())
    table.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    for main in (report, reach, compare):
        status = main([str(table)])
        assert sorted(tmp_path.rglob("*")) == before
        [line] = capsys.readouterr().err.splitlines()
        assert (status, line.partition(" (")[0]) == (2, f"{table}: not a table of runs")
        assert f"(line {len(lines) if isinstance(lines, list) else 1}: " in line


def test_a_table_is_unpacked_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.analysis.table.MOST_BYTES", 2**26, raising=False)
    table = tmp_path / "x.jsonl.xz"
    line = b'{"run": "r", "file": "p.jsonl", "row": "%s"}\n' % (b"a" * 2**20)
    for part, times, rule in ((b"a" * 2**24, 20, "line 1: longer than"), (line * 16, 20, "line 64: longer than")):
        table.write_bytes(lzma.compress(part, preset=0) * times)  # streams behind one another are one text
        tracemalloc.start()
        with pytest.raises(DataError, match=rule), unpacked([table]):
            pass
        assert tracemalloc.get_traced_memory()[1] < 2**27
        tracemalloc.stop()
