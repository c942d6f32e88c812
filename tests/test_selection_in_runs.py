"""Runs on selected sentences: what they record, how they resume, and what is refused at the start."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.config import load_experiment
from lab.data.module import PackedData
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from lab.errors import ConfigError, DataError
from lab.session import run_experiment
from lab.settings import parse_overrides
from lab.source.weights import read_weights
from tests.test_masks_in_runs import pairs_of

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "cpu_test.yaml"
TARGET_LEN, STEPS = 240, 6
COMMON = (
    "--data.mode=concatenated",
    "--skip.method=longrecipe",
    f"--skip.target_len={TARGET_LEN}",
    "--probe.every_tokens=null",
    "--probe.loss_tokens=0",
    "--probe.max_length=128",
    "--train.tokens=6144",
    "--train.checkpoint_every_tokens=2048",
    "--train.keep_checkpoints=9",
)
SPEED = ("tokens_per_s", "mfu", "mfu_pairs")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an analysis for the test corpus, whose token types are two digits."""
    place = tmp_path_factory.mktemp("selection")
    data = load_experiment(CONFIG, {"data.folder": str(place / "shards")}).data
    prepare(data, progress=False)
    tokenizer = load_tokenizer(shard_folder(data))
    ids = [tokenizer.token_to_id(digit) for digit in "47"]
    (place / "impact").mkdir()
    write(place, {"tokenizer": vocabulary_hash(tokenizer), "token_ids": ids})
    return place


def write(place, result):
    (place / "impact" / "impact.json").write_text(json.dumps(result))


def experiment_of(place, name, *words):
    where = [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", f"--run.name={name}"]
    return load_experiment(CONFIG, parse_overrides([*where, *COMMON, *words]))


def selecting(place):
    return f"--skip.selection={place / 'impact'}"


def records(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in SPEED} for line in lines]


@pytest.fixture(scope="module")
def finished(place):
    assert run_experiment(experiment_of(place, "whole", selecting(place)), False, "again") == 0
    return place / "runs" / "whole"


def replayed(run):
    """Take the packs of all steps again, from the run's own config and its own copy of the token types."""
    experiment = load_experiment(run / "config.yaml")
    train = experiment.train
    data = PackedData(
        experiment.data,
        seed=experiment.run.seed,
        micro_batch_tokens=train.micro_batch_tokens,
        n_streams=train.n_packs,
        skip=experiment.skip,
        token_types=run / "impact.json" if experiment.reads_token_types else None,
    )
    data.setup("fit")
    return [list(itertools.islice(data.stream(j), train.steps)) for j in range(train.n_packs)]


@pytest.mark.parametrize("kind", ["selection", "random"])
def test_a_run_counts_every_pair_and_every_sample(kind, place, finished):
    run = finished
    if kind == "random":
        assert run_experiment(experiment_of(place, "random", "--skip.random_sentences=true"), False, "again") == 0
        run = place / "runs" / "random"
    found, samples = np.zeros(TARGET_LEN, dtype=np.int64), np.zeros(3, dtype=np.int64)
    lines = records(run)
    for line, packs in zip(lines, zip(*replayed(run), strict=True), strict=True):
        for pack in packs:
            found += np.bincount(pairs_of(pack), minlength=TARGET_LEN)
            samples += pack.selected
        assert line["consumed_tokens"] == found[0]
        assert [line[f"f_at_{x}L"] for x in (0.125, 0.25, 0.5, 0.75)] == found[[30, 60, 120, 180]].tolist()
        assert [line[key] for key in ("samples", "samples_unmatched", "samples_short")] == samples.tolist()
    np.testing.assert_array_equal(np.load(run / "counts.npz")["f"], found)
    assert found[96:].any()
    assert (run / "impact.json").exists() == (kind == "selection")
    if kind == "random":
        assert samples[1] == samples[2] == 0
        assert found[0] == 960 * STEPS, "ten samples of 96 tokens fill what they can of 1,024"


def test_runs_without_selection_say_nothing_of_it(place):
    assert run_experiment(experiment_of(place, "plain"), False, "again") == 0
    assert not any("samples" in key for line in records(place / "runs" / "plain") for key in line)


@pytest.mark.parametrize("original", ["changed", "gone", "the_same"])
def test_a_resumed_run_keeps_its_token_types(original, place, finished, capsys):
    cut = place / "runs" / original
    shutil.copytree(finished, cut)
    for checkpoint in sorted((cut / "checkpoints").glob("tokens-*"))[1:]:
        shutil.rmtree(checkpoint)
    file = place / "impact" / "impact.json"
    before = file.read_text()
    if original == "changed":
        write(place, json.loads(before) | {"token_ids": [5]})
    if original == "gone":
        file.unlink()
    try:
        assert run_experiment(experiment_of(place, original, selecting(place)), True, "again") == 0
    finally:
        file.write_text(before)
    told = capsys.readouterr()
    assert "; continues at " in told.out
    assert (f"skip.selection={place / 'impact'}: has changed; the run continues with " in told.err) == (
        original == "changed"
    )
    assert records(cut) == records(finished)
    states = [read_weights(run) for run in (cut, finished)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("result", "kind", "line"),
    [
        ({"token_ids": []}, ConfigError, "skip.selection={file}: holds no token types, every sentence would be "),
        (
            {"tokenizer": "0"},
            ConfigError,
            "skip.selection={file}: was made with another tokenizer than data.tokenizer; ",
        ),
        ({"token_ids": [1]}, DataError, "skip.selection={folder}: its token types occur in none of the first 32 "),
    ],
    ids=["empty", "another_tokenizer", "unmatched"],
)
def test_a_selection_that_cannot_be_is_refused_at_the_start(result, kind, line, place, tmp_path):
    whole = json.loads((place / "impact" / "impact.json").read_text())
    if result.get("token_ids") == [1]:
        vocabulary = load_tokenizer(next((place / "shards").iterdir())).get_vocab()
        result = {"token_ids": [vocabulary["\u00ff"]]}  # byte 255, which UTF-8 never holds
    (tmp_path / "impact.json").write_text(json.dumps(whole | result))
    with pytest.raises(kind) as caught:
        run_experiment(experiment_of(place, "refused", f"--skip.selection={tmp_path}"), False, "again")
    named = {"folder": tmp_path, "file": tmp_path / "impact.json"}
    assert str(caught.value).startswith(line.format(**named))
    assert "\n" not in str(caught.value)
    assert not (place / "runs" / "refused" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        pytest.param(
            ["--data.mode=natural", "--skip.random_sentences=true"],
            [
                "data.mode=natural: skip.selection and skip.random_sentences take sentences of full windows of "
                "skip.target_len tokens; set data.mode: concatenated"
            ],
            id="documents_as_they_are",
        ),
        pytest.param(
            ["--skip.selection=x", "--skip.random_sentences=true"],
            [
                "skip.selection=x: would be ignored, random_sentences=true draws from all sentences; leave one of them "
                "out"
            ],
            id="both",
        ),
        pytest.param(
            ["--skip.method=pose", "--skip.target_len=240", "--skip.selection=x"],
            ["skip.selection=x: unknown setting; skip has target_len, method"],
            id="of_another_method",
        ),
    ],
)
def test_a_selection_that_does_not_fit_the_run_is_refused(words, faults, place):
    overrides = [word for word in COMMON if not any(word.split("=")[0] == own.split("=")[0] for own in words)]
    with pytest.raises(ConfigError) as caught:
        load_experiment(CONFIG, parse_overrides([*overrides, *words]))
    assert list(caught.value.faults) == faults
