import json

import numpy as np
import pytest

from eval.picture import main
from lab.errors import CheckpointError
from lab.train.arms import mean_with_limits
from lab.train.picture import draw_run

pytest.importorskip("altair")
PNG = b"\x89PNG\r\n\x1a\n"


def size_of(path):
    data = path.read_bytes()
    assert data.startswith(PNG)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def write_run(folder, parts=("counts", "metrics", "probes")):
    """Make a run folder by hand: two windows of 8 tokens, two steps, two probes."""
    folder.mkdir()
    if "counts" in parts:
        lengths = np.zeros(9, np.int64)
        lengths[8] = 2
        np.savez(folder / "counts.npz", lengths=lengths, f=np.arange(16, 0, -2), tokens=16)
    if "metrics" in parts:
        rows = [{"step": k, "consumed_tokens": 8 * k, "loss": loss} for k, loss in ((1, 5.0), (2, None))]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if "probes" in parts:
        rows = []
        for tokens in (8, 16):
            rows += [{"consumed_tokens": tokens, "length": n, "accuracy": 0.5 if n == 4 else "?"} for n in (4, 8)]
            rows.append({"consumed_tokens": tokens, "effective_length": 4, "threshold": 0.8, "held_out_loss": 5.5})
        (folder / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("parts", [("counts", "metrics", "probes"), ("counts",)], ids=["whole", "counts_only"])
def test_a_run_folder_becomes_a_picture(tmp_path, parts):
    path = draw_run(write_run(tmp_path / "run", parts))
    assert path == tmp_path / "run" / "picture.png"
    assert size_of(path)[0] > 1500  # pixels, of three charts


def test_a_folder_without_counts_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=r"run: holds no counts\.npz; use"):
        draw_run(write_run(tmp_path / "run", ()))


def test_the_old_command_names_the_new_one(capsys):
    assert main(["runs/a"]) == 2
    assert "python -m eval.report" in capsys.readouterr().err


def test_seeds_without_a_spread_have_no_limits():
    # 1, 2, 3: mean 2, s 1, t_2 = 4.302653: 2 -+ 4.302653 / sqrt(3)
    assert mean_with_limits([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-6)
    for values in ([2.0], [2.0, 2.0]):
        mean, *limits = mean_with_limits(values)
        assert (mean, np.isnan(limits).all()) == (2, True)
