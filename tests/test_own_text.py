"""A folder of a user's own text: trained on without other settings, without probes, and several times over."""

import json

import pytest

from lab.config import load_experiment
from lab.data.config import Text
from lab.data.preparation import shard_folder
from tests.fits import ROOT, command, fit, load, records
from tests.forked import python
from tests.refusals import check_faults, refused

CONFIG_TEXT = """
model: {d_model: 32, n_layers: 1, n_heads: 2, n_kv_heads: 2, d_ff: 64, tie_embeddings: true}
data: {window: 96, held_out_frac: 0.2}
train: {tokens: 24576, batch_tokens: 1024, micro_batch_tokens: 512, accelerator: cpu, threads: 1}
optim: {warmup_steps: 4}
track: {every_steps: 4}
"""


@pytest.fixture(scope="module")
def own(place):
    (place / "text").mkdir()
    for number in range(60):
        words = [f"word{number * k % 97} of text {number}" for k in range(20 + number)]
        (place / "text" / f"{number}.txt").write_text(". ".join(words))
    (place / "own.yaml").write_text(CONFIG_TEXT)
    return place / "own.yaml"


def test_own_text_needs_its_path_alone_and_its_epochs_are_recorded(place, own):
    run = fit(place, "plain", f"--data.corpus.path={place / 'text'}", "--probe.tests=2", config=own)
    assert load_experiment(run / "config.yaml").data.corpus == Text(path=str(place / "text"))
    assert [line["held_out_loss"] > 0 for line in records(run, "probes.jsonl") if "held_out_loss" in line] == [True]


@pytest.mark.parametrize("name", ["cpu_demo", "cpu_short", "cpu_stdlib", "cpu_test"])
def test_sizes_of_tests_are_of_the_corpus_of_their_config(name):
    """With another corpus they are those of the command line or the defaults."""
    config, named = ROOT / "configs" / f"{name}.yaml", {"probe.max_length": 300, "probe.step": 5}
    kept = load_experiment(config).probe
    assert (kept.answer_budget in (24, 48), kept.max_length in (144, 256, 352, 384)) == (True, True)
    for words, max_length in (({}, None), (named, 300)):
        probe = load_experiment(config, {"data.corpus.path": "x", **words}).probe
        assert (probe.answer_budget, probe.max_length) == (None, max_length)


def test_the_epoch_is_recorded_and_a_line_says_that_text_is_read_again(place, own):
    """Full windows of 96 tokens, five to a pack, are counted by hand; without probes a run trains, counts and ends."""
    words = [f"--data.corpus.path={place / 'text'}", "--probe=null", "--data.mode=concatenated"]
    words += ["--data.held_out_frac=0", "--train.tokens=36864"]
    done = python(*command(place, "again", *words, config=own)[1:])
    run = place / "runs" / "again"
    shards = shard_folder(load_experiment(run / "config.yaml").data)
    manifests = [json.loads(path.read_text()) for path in shards.glob("task-*/manifest.json")]
    tokens = sum(manifest["splits"]["train"]["tokens"] for manifest in manifests)
    assert [line for line in done.stdout.splitlines() if f" {36864 / tokens:.2f} times" in line]
    lines = records(run)
    assert lines[-1]["epoch"] > 1
    assert [line["epoch"] for line in lines] == [round(10 * line["step"] / (tokens // 96), 6) for line in lines]
    assert lines[-1]["step"] == 36
    assert not (run / "probes.jsonl").exists()
    assert (run / "counts.npz").exists()
    assert "already finished" in python("-m", "lab.fit", str(run / "config.yaml"), "--resume").stdout


def test_faults_of_a_probe_come_together_before_any_text_is_tokenized(place, own):
    options = [f"--data.corpus.path={place / 'text'}", "--data.tokenizer.vocab_size=300"]
    options += ["--probe.answer_budget=4", "--probe.max_length=96", "--probe.distance_points=2"]
    done = python(*command(place / "other", "faulty", *options, config=own)[1:])
    assert done.returncode == 2
    rules = ["probe.answer_budget=4: ", "probe.max_length=96: ", "probe.distances="]
    check_faults(done.stderr.splitlines()[-3:], rules)
    assert not [*(place / "other").rglob("task-*")]


def test_a_path_takes_no_place_of_a_corpus_that_is_named():
    assert load("--data.corpus.name=conversations", "--data.corpus.path=x").data.corpus.name == "conversations"
    with refused("data.corpus.path=x: unknown"):
        load("--data.corpus.name=stdlib", "--data.corpus.path=x")
