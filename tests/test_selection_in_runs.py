"""Runs on selected sentences: what they record, how they resume, and what is refused at the start."""

import json

import numpy as np
import pytest

from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from lab.errors import ConfigError
from tests.fits import UNPROBED, load, records, train
from tests.refusals import refused
from tests.replay import pairs_of, replayed

TARGET_LEN, STEPS = 240, 6
COMMON = (
    "--data.mode=concatenated",
    "--skip.method=longrecipe",
    f"--skip.target_len={TARGET_LEN}",
    *UNPROBED,
    "--train.tokens=6144",
    "--train.checkpoint_every_tokens=2048",
    "--train.keep_checkpoints=9",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an analysis for the test corpus, whose token types are two digits."""
    place = tmp_path_factory.mktemp("selection")
    data = load(f"--data.folder={place / 'shards'}").data
    prepare(data, progress=False)
    tokenizer = load_tokenizer(shard_folder(data))
    ids = [tokenizer.token_to_id(digit) for digit in "47"]
    (place / "impact").mkdir()
    write(place, {"tokenizer": vocabulary_hash(tokenizer), "token_ids": ids})
    return place


def write(place, result):
    (place / "impact" / "impact.json").write_text(json.dumps(result))


def selecting(place):
    return f"--skip.selection={place / 'impact'}"


@pytest.fixture(scope="module")
def finished(place):
    return train(place, "whole", *COMMON, selecting(place))


@pytest.mark.parametrize("kind", ["selection", "random"])
def test_a_run_counts_every_pair_and_every_sample(kind, place, finished):
    run = finished if kind == "selection" else train(place, "random", *COMMON, "--skip.selection=random")
    found, samples = np.zeros(TARGET_LEN, dtype=np.int64), np.zeros(3, dtype=np.int64)
    lines = records(run)
    for line, packs in zip(lines, replayed(run)[1], strict=True):
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


@pytest.mark.parametrize(
    ("result", "kind", "line"),
    [
        ({"token_ids": []}, ConfigError, "{file}: is no result of impact (its token_ids are none of "),
        ({"tokenizer": "0"}, ConfigError, "{file}: was made with another tokenizer than data.tokenizer"),
    ],
    ids=["empty", "another_tokenizer"],
)
def test_a_selection_that_cannot_be_is_refused_at_the_start(result, kind, line, place, tmp_path):
    whole = json.loads((place / "impact" / "impact.json").read_text())
    (tmp_path / "impact.json").write_text(json.dumps(whole | result))
    with refused("skip.selection=" + line.format(folder=tmp_path, file=tmp_path / "impact.json"), error=kind):
        train(place, "refused", *COMMON, f"--skip.selection={tmp_path}")
    assert not (place / "runs" / "refused" / "metrics.jsonl").exists()
