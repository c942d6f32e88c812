"""lab.verify: every flipped bit and every file that is not what was recorded is found, and whole folders have none."""

import hashlib
import json
import random
import shutil

import numpy as np
import pytest
from lab.data.blocks import BlockArray
from lab.data.closing import digest_of_data

from lab.counts import PositionCounts
from lab.data import blocks, manifests
from lab.data.preparation import prepare, shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.train.checkpoints import newest, publish, temporary_folder
from lab.train.folder import RunFolder, packed_counts
from lab.verify import main
from tests.fits import UNPROBED, exact_metrics, load, settings_of, train
from tests.opened import write_run
from tests.refusals import refused

AT = 8192  # consumed tokens of the last checkpoint


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    """A run folder and its shards, with an index in each shard."""
    place = tmp_path_factory.mktemp("whole")
    corpus = place / "shards" / shard_folder(prepared).name
    shutil.copytree(shard_folder(prepared), corpus)
    index_segments(TokenStore.open(corpus, "train"), "natural", 16)
    run = write_run(place / "run", prepared, vocab_size=400)
    folder, counts = RunFolder(run), PositionCounts(64)
    counts.add_runs([64, 5], None)
    temporary = temporary_folder(folder.checkpoints)
    (temporary / "state.ckpt").write_bytes(random.Random(5).randbytes(500))
    (temporary / "counts.npz").write_bytes(packed_counts(counts))
    publish(folder.checkpoints, AT, keep=2)
    shutil.copy(corpus / "tokenizer.json", run)
    environment = {"format": 2, "threads": 1, "data": digest_of_data(corpus)}
    (run / "environment.json").write_text(json.dumps(environment))
    folder.write_counts(counts)
    folder.write_cases(AT, [{"length": 8}])
    folder.append("probes.jsonl", {"consumed_tokens": AT, "effective_length": 8})
    for consumed in (4096, AT):
        folder.append("metrics.jsonl", {"consumed_tokens": consumed, "loss": 1.0})
    return run, corpus


@pytest.fixture
def here(whole, tmp_path):
    """A copy of both."""
    return tuple(shutil.copytree(folder, tmp_path / folder.name) for folder in whole)


def verified(path, capsys):
    """Verify a path: the exit status, and the lines that are printed."""
    status = main([str(path)])
    out, err = capsys.readouterr()
    return status, (out + err).splitlines()


def test_whole_folders_have_no_fault_and_all_of_their_files_are_read(here, capsys):
    run, corpus = here
    for folder in (run, corpus, run / "checkpoints" / f"tokens-{AT:015d}", corpus / "task-00000"):
        status, lines = verified(folder, capsys)
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        assert (status, lines) == (0, [f"{len(files):,} files, {size:,} bytes: no fault"])


def test_a_haystack_that_is_not_the_last_probes_is_a_fault(here, capsys):
    run, _ = here
    for text in ("an earlier text", "the text"):
        digest = hashlib.sha256(text.encode()).hexdigest()
        RunFolder(run).append("probes.jsonl", {"consumed_tokens": AT, "length": 8, "haystack": digest[:16]})
    (run / "haystack.txt").write_text("the text")
    assert verified(run, capsys)[0] == 0
    (run / "haystack.txt").write_text("the texu")
    status, (line, _) = verified(run, capsys)
    assert status == 1
    assert line.startswith(f"{run / 'haystack.txt'}: has SHA-256 ")


def flips_missed(folders, n, seed, capsys):
    """Flip a bit at a time anywhere in shards, indices, checkpoints and manifests; return those missed, and those
    that change no value of a JSON file."""
    run, corpus = folders
    files = [p for p in [*corpus.rglob("*"), *run.glob("checkpoints/*/*")] if p.is_file() and p.stat().st_size]
    missed, harmless, draw = [], 0, random.Random(seed)
    for _ in range(n):
        path = draw.choice(files)
        data = path.read_bytes()
        flipped = bytearray(data)
        place = draw.randrange(len(data))
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        status, lines = verified(corpus if corpus in path.parents else path.parent, capsys)
        path.write_bytes(data)
        if status == 1 and len(lines) > 1:
            assert any(str(path) in line or str(path.parent) in line for line in lines), lines
        elif path.suffix == ".json" and json.loads(flipped) == json.loads(data):
            harmless += 1
        else:
            missed.append((path, place, status, lines))
    return missed, harmless


def test_every_flipped_bit_is_found(here, capsys):
    missed, harmless = flips_missed(here, 40, 1, capsys)
    assert not missed
    assert harmless < 10


@pytest.mark.slow
def test_every_one_of_a_thousand_flipped_bits_is_found(here, capsys):
    missed, harmless = flips_missed(here, 1000, 2, capsys)
    assert not missed
    assert harmless < 100


def drop(name):
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def rewrite(name, **changes):
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


LAST = f"checkpoints/tokens-{AT:015d}"
RUN_FAULTS = {  # what is done to the run folder, and the line's beginning below it
    "no_config": (drop("config.yaml"), "config.yaml: is missing"),
    "config": (write("config.yaml", "train: {tokens: -1}"), None),
    "tokenizer": (write("tokenizer.json", "{}"), "tokenizer.json: has 2 bytes"),
    "environment": (rewrite("environment.json", format=9), "environment.json: format 9 is unknown"),
    "other_data": (rewrite("environment.json", data="0" * 64), None),
    "metrics": (write("metrics.jsonl", "7\n"), "metrics.jsonl: line 1 "),
    "order": (
        write("metrics.jsonl", '{"consumed_tokens": 2}\n{"consumed_tokens": 1}\n'),
        "metrics.jsonl: consumed_tokens decrease",
    ),
    "no_cases": (drop(f"cases/tokens-{AT:015d}.jsonl"), f"cases/tokens-{AT:015d}.jsonl: is missing"),
    "counts": (write("counts.npz", "x"), "counts.npz: cannot be read"),
    "no_checkpoint": (drop("checkpoints"), "checkpoints: holds no checkpoint"),
    "file_more": (write(f"{LAST}/more.bin", ""), f"{LAST}/more.bin: is not listed in its manifest"),
    "seal": (rewrite(f"{LAST}/manifest.json", more=1), f"{LAST}/manifest.json: does not match its own SHA-256"),
    "renamed": (lambda run: (run / LAST).rename(run / "checkpoints/tokens-000000000000009"), None),
}


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_a_fault_of_a_run_is_one_line(here, capsys, name):
    run, _ = here
    change, rule = RUN_FAULTS[name]
    change(run)
    status, lines = verified(run, capsys)
    assert status == 1
    if rule is not None:
        assert any(line.startswith(f"{run}/{rule}") for line in lines), lines
    assert lines[-1].endswith(f" bytes: {len(lines) - 1} faults")


def test_all_faults_are_listed(here, capsys):
    _, corpus = here
    for name in ("train.tokens.bin", "held_out.ends.bin"):
        data = np.fromfile(corpus / "task-00000" / name, np.uint8)
        (corpus / "task-00000" / name).write_bytes((data ^ 1).tobytes())
    (corpus / "task-00000" / ".groups-train-16.npy").write_bytes(b"")
    (corpus / "inputs.json").write_text("{}")
    status, lines = verified(corpus, capsys)
    named = sorted(line.split(": ")[0].rsplit("/", 1)[1] for line in lines[:-1])
    assert (status, named) == (1, [".groups-train-16.npy", "held_out.ends.bin", "inputs.json", "train.tokens.bin"])


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["runs", "--fast=1"]])
def test_what_cannot_be_verified_is_refused(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "; " in line


@pytest.mark.slow
def test_a_block_that_is_damaged_while_a_run_trains_ends_it_with_its_last_checkpoint_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    monkeypatch.setattr(manifests, "VERIFY_BYTES", 0)  # as for a large corpus
    often = (*UNPROBED, "--train.checkpoint_every_tokens=1024", "--data.prefetch=0")
    prepare(load(*settings_of(tmp_path, "whole"), *often).data, progress=False)
    read, compare = [], BlockArray.compare

    def noted(self, first, end):
        read.extend((self.path, block) for block in range(first, end))
        compare(self, first, end)

    monkeypatch.setattr(BlockArray, "compare", noted)
    whole = train(tmp_path, "whole", *often)
    first_reads = [one for one in read if one[0].name == "train.tokens.bin"]
    path, block = first_reads[len(first_reads) * 3 // 4]
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[64 * block] ^= 1
    path.write_bytes(flipped)
    with refused(f"{path}: bytes {64 * block:,} to {{}}"):
        train(tmp_path, "run", *often)
    run = tmp_path / "runs" / "run"
    assert newest(run / "checkpoints")[0] is not None
    path.write_bytes(data)
    environment = (run / "environment.json").read_text()
    rewrite("environment.json", data="0" * 64)(run)
    with refused(f"{path.parents[1]}: holds other shards or another tokenizer than the run was started with {{}}"):
        train(tmp_path, "run", *often, resume=True)
    (run / "environment.json").write_text(environment)
    train(tmp_path, "run", *often, resume=True)
    assert exact_metrics(run) == exact_metrics(whole)
