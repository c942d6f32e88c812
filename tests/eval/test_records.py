import numpy as np
import pytest

from benchmarks.tables import pack
from eval.engine.records import unpacked
from eval.report.__main__ import main as report
from eval.report.data import read_runs
from lab.errors import DataError
from lab.train.folder import RunFolder
from tests.eval.report.fakes import PLAIN, evaluate, one, write_fake


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
        left, right = (getattr(each, kind).sort_values("run", kind="stable") for each in (folders, found))
        assert left.to_csv(index=False) == right.to_csv(index=False)


def test_a_broken_table_is_one_line(tmp_path, capsys):
    table = tmp_path / "x.jsonl.xz"
    for content in (b"no table", b"\xfd7zXZ\x00"):
        table.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.jsonl\.xz: not a table of runs"), unpacked([table]):
            pass
    assert report([str(table)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
