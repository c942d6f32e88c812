"""Runs that are killed, damaged or begun twice go on bit for bit, or are refused in one line and left as they are."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from lab.core.errors import DiskError, LabError
from lab.runs.checkpoints import candidates
from lab.train.dry_run import describe_work
from lab.train.run import run_experiment
from lab.verify import main as verify
from tests.faults import Fault, planted
from tests.fits import UNPROBED, assert_same_run, command, cut_after, exact_metrics, load, records, settings_of, train
from tests.forked import python
from tests.launching import ended, patched, workers
from tests.refusals import check_faults, refused

SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048")
KILL_AT = """
import itertools, os
calls = itertools.count(1)
def fatal(call):
    return lambda *given, **named: os.kill(os.getpid(), 9) if next(calls) == {at} else call(*given, **named)
os.replace, os.rename = fatal(os.replace), fatal(os.rename)
"""


@pytest.fixture(scope="module")
def whole(place):
    return train(place, "whole", *SHORT)


def again(place, name, *options, resume=True, **others):
    return run_experiment(load(*settings_of(place, name), *SHORT, *options), resume, "again", **others)


def contents(run):
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def kill(words):
    done = python(*words[1:])
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


def kill_at(place, name, at):
    kill(patched(command(place, name, *SHORT), KILL_AT.format(at=at)))


def check_resumption(place, name, whole):
    train(place, name, *SHORT, resume=True)
    run = place / "runs" / name
    assert_same_run(run, whole)
    assert [path for path in run.rglob(".*") if path.name != ".lock"] == []
    assert not (run / "checkpoints" / "untrained.json").exists()


MARK, METRICS, COUNTS = "checkpoints/untrained.json", "metrics.jsonl", "counts.npz"
MOMENTS = {1: set(), 2: {MARK}, 4: {MARK}, 7: {MARK}, 8: {MARK, METRICS}}  # by the n-th rename


@pytest.mark.parametrize("at", [2, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 7))])
def test_a_kill_before_the_first_checkpoint_is_resumed_bit_for_bit(place, whole, at):
    kill_at(place, f"killed{at}", at)
    assert contents(place / "runs" / f"killed{at}").keys() & {MARK, METRICS, COUNTS} == MOMENTS[at]
    check_resumption(place, f"killed{at}", whole)


def test_a_kill_as_a_killed_run_begins_again_leaves_nothing_that_contradicts_its_manifest(place, whole):
    kill_at(place, "twice", 8)
    fault = Fault("lab.train.starting:text_to_keep", int(signal.SIGKILL))
    kill(planted(command(place, "twice", *SHORT, "--resume"), fault))
    assert verify([str(place / "runs" / "twice")]) == 0
    check_resumption(place, "twice", whole)


def edit(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def cut(share):
    return edit(lambda data: data[: int(len(data) * share)])


def zeros(share):
    return edit(lambda data: data[: int(len(data) * share)].ljust(len(data), b"\0"))


def flip(data):
    return data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 1]) + data[len(data) // 3 + 1 :]


DAMAGE = {  # checkpoints that are left of two, the file, what happens to it, and what is said if nothing goes on
    "all_checkpoints": (2, "checkpoints/tokens-*/state.ckpt", cut(0), "has 0 bytes, "),
    "no_checkpoints": (2, "checkpoints", shutil.rmtree, "holds no checkpoint"),
    "tokenizer": (2, "tokenizer.json", edit(flip), "has SHA-256 "),
    "metrics": (2, "metrics.jsonl", edit(flip), "has SHA-256 "),
    "no_environment": (2, "environment.json", Path.unlink, "is missing"),
    "no_metrics": (2, "metrics.jsonl", Path.unlink, "is missing"),
    "no_manifest": (2, "manifest.json", Path.unlink, "cannot be read"),
    "no_config": (2, "config.yaml", Path.unlink, "is missing, "),
    "cut_before": (2, "metrics.jsonl", cut(0.9), ""),  # a loss of power, before the newest checkpoint and after it
    "zeros_before": (2, "metrics.jsonl", zeros(0.9), ""),
    "old_cases": (1, "cases/{first}.jsonl", cut(0.5), ""),
    "cases_between": (2, "cases/{middle}.jsonl", cut(0.5), ""),
    "cut_after": (1, "metrics.jsonl", cut(0.9), None),
    "zeros_after": (1, "metrics.jsonl", zeros(0.9), None),
    "cut_probe": (2, "probes.jsonl", cut(0.95), None),
    "zeros_probe": (2, "probes.jsonl", zeros(0.95), None),
    "cases": (2, "cases/{last}.jsonl", zeros(0.5), None),
    "counts": (2, "counts/{last}.npz", cut(0), None),
    "unsealed": (2, "metrics.jsonl", edit(lambda data: data + b"\0" * 99), None),
    "hole": (2, "metrics.jsonl", edit(lambda data: data + b"\0" * 99 + data[-99:]), None),
    "hole_in_probes": (2, "probes.jsonl", edit(lambda data: data + b"\0" * 99 + data[-99:]), None),
    "repeated": (2, "metrics.jsonl", edit(lambda data: data + data), None),
}


@pytest.fixture(scope="module")
def probed(place):
    options = ("--probe.every_tokens=2048", "--probe.tests=1", "--probe.max_length=128", *SHORT[-2:])
    return options, train(place, "probed", *options)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_and_left_or_written_again_where_it_is_after_a_checkpoint(place, probed, capsys, name):
    (options, whole), run = probed, place / "runs" / name
    left, file, damage, rule = DAMAGE[name]
    cut_after(whole, run, left)
    first, middle, last = (path.stem for path in sorted((run / "cases").iterdir()))
    paths = sorted(run.glob(file.format(first=first, middle=middle, last=last)))
    for path in paths:
        damage(path)
    before = contents(run)
    if rule is None:
        train(place, run.name, *options, resume=True)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "what is lost" in line]
        assert line.startswith(f"{paths[0]}: ")
        assert_same_run(run, whole)
        assert verify([str(run)]) == 0
        return
    with pytest.raises(LabError) as caught:
        train(place, run.name, *options, resume=True)
    check_faults([str(caught.value)], [f"{paths[-1]}: "])
    older, newest = sorted(path.name for path in candidates(whole / "checkpoints"))
    fix = "--restart"
    if name in ("cut_before", "zeros_before", "cases_between"):
        fix = f"delete {run / 'checkpoints' / newest} to go on from {older}"
    assert rule in str(caught.value)
    assert fix in str(caught.value)
    assert contents(run) == before


@pytest.mark.parametrize("lost", ["records", "manifest", "cases"])
def test_records_that_are_older_than_a_checkpoint_are_rejected(place, probed, lost):
    """As in a copy that was made while the run trained, or whose records come from an older backup."""
    (options, whole), run = probed, place / "runs" / f"older_{lost}"
    older, newest = candidates(cut_after(whole, run, 2) / "checkpoints")[::-1]
    manifest, records_then = (json.loads((folder / "manifest.json").read_text()) for folder in (run, older))
    if lost != "manifest":
        files = {name: entry for name, entry in manifest["files"].items() if older.name not in name}
        manifest["files"] = files | records_then["records"]
        (run / "manifest.json").write_text(json.dumps(manifest))
    for name, entry in records_then["records"].items():
        if lost != "cases":
            (run / name).write_bytes((run / name).read_bytes()[: entry["bytes"]])
    if lost == "cases":
        (run / "cases" / f"{older.name}.jsonl").unlink()
    assert verify([str(run)]) == 1
    with refused(f"{run}/", error=LabError) as caught:
        train(place, run.name, *options, resume=True)
    assert f"delete {newest} to go on from {older.name}" in str(caught.value)
    shutil.rmtree(newest)
    train(place, run.name, *options, resume=True)
    assert_same_run(run, whole)


def test_counts_that_are_older_than_the_last_checkpoint_are_written_again(place, whole):
    run = place / "runs" / "older_counts"
    shutil.copytree(whole, run)
    shutil.copy(candidates(run / "checkpoints")[-1] / COUNTS, run)
    train(place, run.name, *SHORT, resume=True)
    assert_same_run(run, whole)


def test_a_folder_with_records_needs_a_flag_and_restart_moves_it_aside(place, whole, capsys):
    run = place / "runs" / "moved"
    shutil.copytree(whole, run)
    (run / "config.yaml").unlink()
    before = contents(run)
    for resume in (False, True):
        with pytest.raises(LabError, match="--restart"):
            again(place, "moved", resume=resume)
    assert contents(run) == before
    for number in (1, 2):
        assert again(place, "moved", resume=False, restart=True) == 0
        assert f"moved to {run}.before-{number}" in capsys.readouterr().out
        assert exact_metrics(run) == exact_metrics(whole)
    assert contents(run.with_name("moved.before-1")) == before
    assert exact_metrics(run.with_name("moved.before-2")) == exact_metrics(whole)


@pytest.mark.parametrize(
    ("n", "options", "saved"),  # of six steps, each of which can save
    [(3, (), 0), (6, ("--train.keep_checkpoints=5",), 0), (6, ("--train.keep_checkpoints=9",), 0), (2, (), 1)],
)
def test_too_little_room_is_refused_before_anything_is_written(place, whole, monkeypatch, n, options, saved):
    # in each checkpoint: 56,992 weights of 12 bytes, two streams of 34 places of 8 bytes, and counts.npz
    needed = n * (56_992 * 12 + 2 * 34 * 8 + (whole / "counts.npz").stat().st_size)
    name = f"full{n}{saved}"
    run = place / "runs" / name
    if saved:
        cut_after(whole, run, saved)
    before = contents(run)
    monkeypatch.setattr("lab.core.files.free_bytes", lambda path: needed - 1)
    with refused(f"{run}: needs {needed:,} bytes, ", error=DiskError):
        again(place, name, *options)
    assert contents(run) == before
    assert f"{needed / 1e9:.2f} GB ({n}" in describe_work(load(*SHORT, *options), 0.5)["all checkpoints"] or saved


FINAL = ("--train.tokens=25600", "--train.batch_tokens=512", "--train.final_checkpoints=true")  # steps 10, 20, .. 50


def steps_kept(run, whole):
    """List the steps of the checkpoints, oldest first."""
    at = {record["consumed_tokens"]: record["step"] for record in records(whole)}
    return [at[int(folder.name.removeprefix("tokens-"))] for folder in reversed(candidates(run / "checkpoints"))]


def test_the_final_checkpoints_are_kept_whatever_is_saved_between_them(place):
    often = (*UNPROBED, "--train.checkpoint_every_tokens=1024", *FINAL)
    whole = train(place, "final", *often)
    assert steps_kept(whole, whole) == [10, 20, 30, 40, 50]
    # a kill after the 13th checkpoint, between final ones, which goes when the next is saved
    fault = Fault("lab.runs.folder:RunFolder.write_counts", int(signal.SIGKILL), call=13)
    kill(planted(command(place, "killed_final", *often), fault))
    run = place / "runs" / "killed_final"
    first, second, last = steps_kept(run, whole)
    assert (first, second) == (10, 20) < (last, 30)
    train(place, "killed_final", *often, resume=True)
    assert_same_run(run, whole)
    assert steps_kept(run, whole) == [10, 20, 30, 40, 50]


def test_kills_before_the_counts_of_a_run_leave_those_of_a_checkpoint(place):
    """The first kill comes before any checkpoint, the second after two, and the others after the first save each."""
    often, name = (*UNPROBED, "--train.checkpoint_every_tokens=1024"), "killed_before_counts"
    for call, kept in ((1, 0), (2, 2), (1, 2), (1, 2)):
        fault = Fault("lab.runs.folder:RunFolder.write_counts", int(signal.SIGKILL), call=call)
        kill(planted(command(place, name, *often, "--resume"), fault))
        assert verify([str(place / "runs" / name)]) == 0
        assert len(candidates(place / "runs" / name / "checkpoints")) == kept


@pytest.mark.slow
def test_a_rank_that_looks_late_ends_with_the_others_of_a_finished_run(place):
    """The store of the ranks ends with the first one, which must not end before the last one has read it."""
    options = (*UNPROBED, "--train.tokens=2048", "--optim.warmup_steps=0", "--train.devices=2")
    late = Fault("lab.train.agreement:raise_error", 1.0, ranks=(1,), stays=True)
    words = planted(command(place, "finished_on_two", *options, "--resume"), late)
    for _ in range(2):  # trained, and then found finished
        statuses, outputs = ended(place, [(words, variables) for variables in workers(2)])
        assert statuses == [0, 0], "".join(outputs)
    assert "already finished" in outputs[0]
