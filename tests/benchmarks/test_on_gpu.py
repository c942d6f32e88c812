"""The command for the day a GPU is there, at toy size on a CPU."""

from benchmarks import on_gpu, record
from benchmarks.gpu import training


def test_a_case_that_raises_does_not_stop_the_next(tmp_path, monkeypatch, capsys):
    def fails():
        raise ValueError("no such thing")

    def lacks():
        raise record.Skipped("no such package")

    made = {"before": lambda: {"x": 1}, "broken": fails, "absent": lacks, "after": lambda: {"x": 2}}
    monkeypatch.setattr(on_gpu, "cases", lambda options: made)
    monkeypatch.setattr("sys.argv", ["on_gpu", "--out", str(tmp_path / "new"), "--toy"])
    assert on_gpu.main() == 1
    found = [(r.case, r.status, r.reason) for r in record.read(tmp_path / "new" / "results.jsonl")]
    assert found == [
        ("before", "ok", None),
        ("broken", "failed", "ValueError: no such thing"),
        ("absent", "skipped", "no such package"),
        ("after", "ok", None),
    ]
    assert capsys.readouterr().out.count("\n") == 4


def test_micro_batches_and_updates_are_timed_apart_by_hand():
    # 3 packs an update; micro-batches between two others take 2 s; an update lasts 9 s, 9 s, 12 s, of them 3 * 2 s
    times = [0, 4, 6, 9, 13, 15, 18, 25, 27, 30]
    assert training.apart(times, 3) == (2, 3)
