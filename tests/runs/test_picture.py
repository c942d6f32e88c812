import json
from contextlib import contextmanager

import numpy as np
import pytest
import yaml

from eval.picture import main
from lab.plots import canvas, line_look
from lab.train import arms_picture, picture
from lab.train.arms import mean_with_limits, name_arms, read_settings
from lab.train.arms_picture import accuracy, draw, reach
from lab.train.picture import draw_run

backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")
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


def write_arms(folder):
    """Two arms: windows 8 with seeds 0 and 1, and 16 with one seed whose probes are by distance, too."""
    folder.mkdir()
    runs = []
    for name, window, seed in (("a-0", 8, 0), ("a-1", 8, 1), ("b", 16, 0)):
        run = write_run(folder / name)
        config = {"run": {"name": name, "seed": seed}, "data": {"window": window}, "probe": {"threshold": 0.8}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        rows = [{"consumed_tokens": 16 + seed, "length": n, "tests": 4, "score": 0.5 * seed} for n in (4, 8)]
        summary = {"consumed_tokens": 16 + seed, "effective_length": 4, "smooth": 4.5 + seed, "held_out_loss": 5.0}
        if name == "b":
            rows += [{"consumed_tokens": 16, "distance": n, "score": 0.5, "n": 4} for n in (2, 4)]
            summary |= {"reach": None, "first_distance": 2}
        (run / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, summary]))
        runs.append(run)
    return runs


def size_of(path):
    data = path.read_bytes()
    assert data.startswith(PNG)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_records_without_some_numbers_leave_gaps_and_others_are_one_line(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "probes.jsonl"):
        rows = [{"consumed_tokens": 9}, {"consumed_tokens": 10, "loss": None, "length": 4, "held_out_loss": "x"}]
        with (run / name).open("a") as file:
            file.write("".join(json.dumps({**row, "threshold": None}) + "\n" for row in rows))
    size_of(draw_run(run))
    for line in ("7", "{}", '{"consumed_tokens": "x"}'):
        (run / "metrics.jsonl").write_text(f"{line}\n")
        assert main([str(run)]) == 2
        (fault,) = capsys.readouterr().err.splitlines()
        assert fault.startswith(f"{run / 'metrics.jsonl'}: line 1 is not an object with consumed_tokens; ")


@pytest.mark.parametrize("parts", [("counts", "metrics", "probes"), ("counts",)], ids=["whole", "counts_only"])
def test_a_run_folder_becomes_a_picture(tmp_path, parts):
    path = draw_run(write_run(tmp_path / "run", parts))
    assert path == tmp_path / "run" / "picture.png"
    width, height = size_of(path)
    assert width > 1000
    assert height > 300


def test_the_command_line_writes_where_it_is_told(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main([str(run), "-o", str(tmp_path / "other.png")]) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'other.png'}\n"
    size_of(tmp_path / "other.png")
    assert not (run / "picture.png").exists()


@pytest.mark.parametrize("exists", [False, True], ids=["no_folder", "no_counts"])
def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys, exists):
    run = write_run(tmp_path / "run", ()) if exists else tmp_path / "run"
    assert main([str(run)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"{run}: holds no counts.npz; ")
    assert told.out == ""


@pytest.mark.parametrize(
    ("words", "status", "start"),
    [
        ([], 2, ""),
        (["--help"], 0, ""),
        (["a", "--by=b"], 2, "--by=b: unknown setting; "),
        (["a", "-o"], 2, "-o: has no value; write it after a space"),
    ],
    ids=["nothing", "help", "option", "no_output"],
)
def test_the_command_line_answers_mistakes(capsys, words, status, start):
    assert main(words) == status
    assert capsys.readouterr().err.startswith(start)


def test_runs_that_differ_in_their_seed_are_one_curve_with_a_band(tmp_path, capsys):
    runs = write_arms(tmp_path / "runs")
    settings = {run.name: read_settings(run) for run in runs}
    assert name_arms(settings) == {"a-0": "window=8", "a-1": "window=8", "b": "window=16"}
    assert main([*map(str, runs), "-o", str(tmp_path / "arms.png")]) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'arms.png'}\n"
    assert min(size_of(tmp_path / "arms.png")) > 700
    with canvas(tmp_path / "x.png", 3, 3) as figure:
        axes = figure.subplots()
        draw(axes, [[(1.0, 2.0), (2.0, 5.0)], [(1.2, 4.0)]], {"color": "black"})
        (line,), (band,) = axes.lines, axes.collections
        assert line.get_xydata().tolist() == [[1.1, 3.0], [2.0, 5.0]]
        # two seeds, 2 and 4: 3 -+ 12.706 * sqrt(2) / sqrt(2); the second point has one seed and no limits
        assert sorted({round(y, 3) for _, y in band.get_paths()[0].vertices}) == [-9.706, 15.706]


def test_points_of_a_probe():
    by_length = [{"consumed_tokens": 2, "length": 8, "score": 0.5}, {"consumed_tokens": 1, "length": 8, "score": 1.0}]
    old = [*by_length, {"consumed_tokens": 2, "effective_length": 0, "smooth": 0.0}]
    assert (accuracy(old), reach(old)) == ([(8, 0.5)], [(2, 0.0)])
    new = [*old[:2], {"consumed_tokens": 2, "distance": 4, "score": 0.25}]
    new.append({"consumed_tokens": 2, "effective_length": None, "smooth": None, "reach": 3.5})
    assert (accuracy(new), reach(new)) == ([(4, 0.25)], [(2, 3.5)])


def labels_that_overlap(figure):
    """List the neighbouring labels of each axis of a drawn figure whose boxes overlap."""
    agg, found = backend_agg.FigureCanvasAgg(figure), []
    agg.draw()
    renderer = agg.get_renderer()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        labels = [label for label in axis.get_ticklabels() if label.get_text()]
        boxes = [label.get_window_extent(renderer) for label in labels]
        found += [a.get_text() for a, one, two in zip(labels, boxes, boxes[1:]) if one.overlaps(two)]
    return found


@pytest.mark.parametrize("several", [False, True], ids=["one_run", "several"])
def test_the_numbers_on_the_axes_of_a_very_short_run_do_not_overlap(tmp_path, monkeypatch, several):
    figures = []
    for module in (arms_picture, picture):
        monkeypatch.setattr(module, "canvas", lambda *words: keep(figures, *words))
    runs = write_arms(tmp_path / "runs")
    arms_picture.draw_arms(runs, tmp_path / "x.png") if several else draw_run(runs[2], tmp_path / "x.png")
    (figure,) = figures
    assert labels_that_overlap(figure) == []
    tokens = [axes.xaxis for axes in figure.axes if axes.get_xlabel() == "consumed tokens"]
    assert {axis.get_view_interval()[0] for axis in tokens} == {0}


@contextmanager
def keep(figures, *words):
    """Draw as always, and keep the figure."""
    with canvas(*words) as figure:
        figures.append(figure)
        yield figure


def test_points_that_coincide_are_told_apart(tmp_path):
    """Of lines on one another each is thinner than those below it, and no two of 28 look the same."""
    looks = [line_look(number, 28, arms_picture.COLOURS) for number in range(28)]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == 28
    widths = [look["linewidth"] for look in looks]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1] == 1.4


def test_seeds_without_a_spread_have_no_limits():
    # 1, 2, 3: mean 2, s 1, t_2 = 4.302653: 2 -+ 4.302653 / sqrt(3)
    assert mean_with_limits([1.0, 2.0, 3.0]) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-6)
    for values in ([2.0], [2.0, 2.0]):
        mean, *limits = mean_with_limits(values)
        assert (mean, np.isnan(limits).all()) == (2, True)
