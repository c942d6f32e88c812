import json

import numpy as np
import pytest

from lab.runs.picture import draw_run, main
from tests.forked import python

pytest.importorskip("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"


def write_run(folder, parts=("counts", "metrics", "probes")):
    """Make a run folder by hand: two windows of 8 tokens, two steps, two probes."""
    folder.mkdir()
    if "counts" in parts:
        lengths = np.zeros(9, np.int64)
        lengths[8] = 2
        np.savez(folder / "counts.npz", lengths=lengths, f=np.arange(16, 0, -2))
    if "metrics" in parts:
        rows = [{"step": k, "consumed_tokens": 8 * k, "loss": 6.0 - k} for k in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if "probes" in parts:
        rows = []
        for tokens in (8, 16):
            rows += [{"consumed_tokens": tokens, "length": n, "tests": 4, "passed": 2, "accuracy": 0.5} for n in (4, 8)]
            rows.append({"consumed_tokens": tokens, "effective_length": 4, "threshold": 0.8, "held_out_loss": 5.5})
        (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def size_of(path):
    data = path.read_bytes()
    assert data.startswith(PNG)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.parametrize(
    "parts",
    [("counts", "metrics", "probes"), ("counts", "metrics"), ("counts",)],
    ids=["whole", "not_probed", "counts_only"],
)
def test_a_run_folder_becomes_a_picture(tmp_path, parts):
    path = draw_run(write_run(tmp_path / "run", parts))
    assert path == tmp_path / "run" / "picture.png"
    width, height = size_of(path)
    assert width > 1000
    assert height > 300


def test_the_command_line_writes_where_it_is_told(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main([str(run), "-o", str(tmp_path / "other.png")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'other.png'}\n"
    size_of(tmp_path / "other.png")
    assert not (run / "picture.png").exists()


@pytest.mark.parametrize("exists", [False, True], ids=["no_folder", "no_counts"])
def test_a_folder_that_is_no_run_is_one_line(tmp_path, exists):
    run = tmp_path / "run"
    if exists:
        write_run(run, ())
    done = python("-m", "eval.picture", run)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{run}: holds no counts.npz; ")
    assert done.stdout == ""


def test_an_output_in_a_folder_that_is_not_there_is_one_line_or_made(tmp_path, capsys):
    run, output = write_run(tmp_path / "run"), tmp_path / "nowhere" / "p.png"
    if main([str(run), "-o", str(output)]) == 0:
        size_of(output)
    else:
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "status", "start"),
    [
        ([], 2, ""),
        (["--help"], 0, ""),
        (["a", "b"], 2, "b: not an option; write RUN [-o PICTURE.png]"),
        (["a", "-o"], 2, "-o: has no value; write it after a space"),
    ],
    ids=["nothing", "help", "two_runs", "no_output"],
)
def test_the_command_line_answers_mistakes(capsys, words, status, start):
    assert main(words) == status
    assert capsys.readouterr().err.startswith(start)
