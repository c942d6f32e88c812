"""lab.verify: flipped bytes, missing, cut and exchanged files are found, and whole folders have no fault."""

import json
import random
import shutil
from contextlib import suppress

import pytest
import torch

from lab.config import load_experiment
from lab.core.errors import CheckpointError
from lab.core.files import errors_in
from lab.core.launch import Launch
from lab.counts import PositionCounts
from lab.data.preparation import shard_folder
from lab.model.decoder import Decoder, DecoderConfig
from lab.runs.checkpoints import RECORDS, Checkpoint, add_to_manifest, read_run_manifest
from lab.runs.folder import RunFolder
from lab.train.starting import find_resume
from lab.verify import OF_A_RUN, main
from tests.opened import adopted, save_weights, sealed, write_run
from tests.refusals import refused

AT = 8192  # consumed tokens of the last checkpoint
LAST = f"checkpoints/tokens-{AT:015d}"
SMALL = DecoderConfig(d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8, vocab_size=8, tie_embeddings=True)


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """A run folder, and shards as they are prepared."""
    place = tmp_path_factory.mktemp("whole")
    corpus = place / "shards" / shard_folder(prepared).name
    shutil.copytree(shard_folder(prepared), corpus, ignore=shutil.ignore_patterns(".*"))
    run = write_run(place / "run", prepared, vocab_size=400)
    folder = RunFolder(run)
    save_weights(folder.checkpoints, Decoder(SMALL, seed=0), AT, keep=1)
    shutil.copy(corpus / "tokenizer.json", run)
    shutil.copy(run / LAST / "counts.npz", run)
    (run / "haystack.txt").write_text("Hay. " * 99)
    (run / "environment.json").write_text(json.dumps({"threads": 1}))
    folder.write_counts(PositionCounts(4), AT)
    folder.write_cases(AT, [{"length": 8}])
    folder.append("probes.jsonl", {"consumed_tokens": AT, "effective_length": 8})
    for step, consumed in enumerate((4096, AT), 1):
        folder.append("metrics.jsonl", {"step": step, "consumed_tokens": consumed, "loss": 1.0})
    return sealed(run), corpus


@pytest.fixture
def here(whole, tmp_path):
    return tuple(shutil.copytree(folder, tmp_path / folder.name) for folder in whole)


def verified(capsys, *paths):
    """Verify paths: the exit status, and the lines that are printed."""
    status = main([str(path) for path in paths])
    out, err = capsys.readouterr()
    return status, (out + err).splitlines()


def test_whole_folders_have_no_fault_and_all_faults_of_shards_are_listed(here, capsys):
    run, corpus = here
    for folders in ([run], [corpus], [run / LAST], [corpus / "task-00000"], [run, run / LAST, corpus]):
        files = {path for folder in folders for path in folder.rglob("[!.]*") if path.is_file()}
        size = sum(path.stat().st_size for path in files)
        assert verified(capsys, *folders) == (0, [f"{len(files):,} files, {size:,} bytes: no error"])
    for name in ("train.ends.bin", "held_out.ends.bin"):
        (corpus / "task-00000" / name).write_bytes(b"x")
    (corpus / "notes.json").write_text("{}")
    status, lines = verified(capsys, run, corpus)
    named = {line.split(": ")[0].rsplit("/", 1)[1] for line in lines[:-1]}
    assert (status, named) == (1, {"held_out.ends.bin", "notes.json", "train.ends.bin"})
    for words in ([corpus, run.parent], [run.parent / "nowhere"], [run, "--fast=1"]):
        status, [line] = verified(capsys, *words)
        assert (status, "; " in line) == (2, True)


@pytest.mark.parametrize("n", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_every_flipped_bit_of_every_file_and_every_lost_file_is_found(here, capsys, monkeypatch, n):
    monkeypatch.setattr("lab.runs.checkpoints.SETTLE_S", 0)
    files = [(place, path) for place in here for path in place.rglob("*") if path.is_file()]
    assert len(files) > 20
    draw = random.Random(n)
    for place, path in files * n:
        data = path.read_bytes()
        if data:
            flipped = bytearray(data)
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            status, lines = verified(capsys, place)
            assert status == 1, path
            assert path.suffix == ".json" or any(line.startswith(str(path)) for line in lines), lines
        path.unlink()
        assert verified(capsys, place)[0] == 1, path
        path.write_bytes(data)
    assert verified(capsys, *here)[0] == 0


def test_a_flipped_bit_in_any_byte_of_a_checkpoints_manifest_is_found(here):
    path = here[0] / LAST / "manifest.json"
    data = path.read_bytes()
    for byte in range(len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << byte % 7
        path.write_bytes(flipped)
        checkpoint = Checkpoint(path.parent)
        with suppress(CheckpointError):
            records = errors_in(here[0], checkpoint.records or {}, grow=RECORDS)
            assert [*errors_in(path.parent, checkpoint.files), *records], flipped
    path.write_bytes(data)


def test_a_run_that_was_killed_as_it_began_again_misses_no_file(here, capsys, monkeypatch):
    run, _ = here
    monkeypatch.setattr(RunFolder, "rewind", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RunFolder(run).begin(dict.fromkeys(OF_A_RUN, b""), read_run_manifest(run)[0], Checkpoint(run / LAST), {})
    assert verified(capsys, run)[0] == 0
    add_to_manifest(run, [])
    assert f"{run}/manifest.json: does not list config.yaml" in verified(capsys, run)[1][0]


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


ORDER = "metrics.jsonl: consumed_tokens or steps do not increase"
RUN_FAULTS = {  # what is done to the run folder, and the line's beginning below it
    "config": (write("config.yaml", "train: {tokens: -1}"), None),
    "order": (write("metrics.jsonl", '{"consumed_tokens": 2}\n{"consumed_tokens": 1}\n'), ORDER),
    "more_records": (lambda run: RunFolder(run).append("metrics.jsonl", {"step": 2, "consumed_tokens": 9000}), ORDER),
    "counts": (write("counts.npz", "x"), "counts.npz: is not that of a checkpoint"),
    "no_checkpoint": (lambda run: shutil.rmtree(run / "checkpoints"), ": holds no checkpoint"),
    "file_more": (write(f"{LAST}/more.bin", ""), f"{LAST}/more.bin: is not listed in manifest.json"),
    "renamed": (lambda run: (run / LAST).rename(run / "checkpoints/tokens-000000000000009"), None),
}


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_a_fault_of_a_run_is_named(here, capsys, name):
    run, _ = here
    change, rule = RUN_FAULTS[name]
    change(run)
    status, lines = verified(capsys, run)
    assert status == 1
    if rule is not None:
        assert any(line.startswith((f"{run}/{rule}", f"{run}{rule}")) for line in lines), lines
    assert lines[-1].endswith(f" bytes: {len(lines) - 1} errors")


STATE_FAULTS = {  # what is done to a state, and the part that is named
    "no_schedule": (lambda state: state.pop("schedule"), "schedule: "),
    "negative_tokens": (lambda state: state.update(consumed_tokens=-5), "recording.counts: are of "),
    "other_tokens": (lambda state: state.update(consumed_tokens=7), "recording.counts: are of "),
    "no_streams": (lambda state: state["data"].pop("streams"), "data.streams: "),
    "streams_of_another_step": (lambda state: state.update(step=2), "data.streams: must be int64 "),
    "short_counts": (lambda state: state["recording"]["counts"]["demand"].pop(), "recording.counts: "),
}


@pytest.mark.parametrize("name", STATE_FAULTS)
def test_a_state_that_lacks_a_part_is_refused_by_verify_and_at_resume(here, capsys, name):
    run, _ = here
    change, part = STATE_FAULTS[name]
    place = run / LAST / "state.ckpt"
    state = torch.load(place, weights_only=True)
    change(state)
    torch.save(state, place)
    adopted(run)
    start = f"{place}: cannot be read ({part}"
    status, lines = verified(capsys, run)
    assert status == 1
    assert any(line.startswith(start) for line in lines), lines
    with refused(start, error=CheckpointError):
        find_resume(load_experiment(run / "config.yaml", {"run.folder": str(run.parent)}), Launch(), resume=True)
