"""A run folder is whole: a copy, without corpus and shards, is probed with the same tests from any folder."""

import importlib
import shutil
from pathlib import Path

import pytest

from lab.config import load_experiment
from lab.data.config import Bpe, DataConfig, Text
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.probe import haystacks
from lab.probe.haystacks import KEPT, load_haystack, text_to_keep
from lab.train.assembly import make_data
from lab.train.folder import RunFolder
from lab.train.starting import start_folder
from tests.data.stores import WORDS, text_config, write_corpus
from tests.fits import records
from tests.opened import CONSUMED, write_run

COMMANDS = {  # what needs no shards
    "distance": "--tests=2 --points=2",
    "ruler": "--tasks=niah_single_1 --lengths=1024 --tests=2",
    "lines": "--lines=2 --tests=2",
    "passkey": "--lengths=512 --tests=2",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with text, shards and a run on them, as a start writes it; all paths in its config are relative."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("corpus").mkdir()
        for number in range(60):
            text = " ".join(f"{WORDS[number * k % 8]} {number + k}" for k in range(60))
            Path(f"corpus/{number}.txt").write_text(text)
        corpus, tokenizer = Text(path="corpus"), Bpe(vocab_size=400)
        data = DataConfig(corpus=corpus, tokenizer=tokenizer, window=512, held_out_frac=0.3, folder="shards")
        prepare(data, progress=False)
        experiment = load_experiment(write_run(Path("runs/own"), data) / "config.yaml")
        folder = RunFolder(Path("runs/own"))
        start_folder(experiment, folder, None, make_data(experiment, folder), threads=1)
    return place


@pytest.fixture
def copied(home, tmp_path, monkeypatch):
    """A copy of the run in a working folder that has nothing else."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(home / "runs" / "own", tmp_path / "elsewhere")


def run(command, words, capsys):
    status = importlib.import_module(f"eval.{command}.__main__").main(words)
    return status, *capsys.readouterr()


def test_a_copied_run_is_probed_with_the_same_tests(home, copied, monkeypatch, capsys):
    words = ["--tests=2", "--step=512", "--max_length=512", "-o", "out"]
    monkeypatch.chdir(home)
    assert run("probe", ["runs/own", *words], capsys)[0] == 0
    monkeypatch.chdir(copied.parent)
    assert run("probe", [str(copied), *words], capsys)[0] == 0
    cases = [f"cases/tokens-{CONSUMED:015d}.jsonl"]
    first, again = (records(place, *cases) for place in (home / "out", Path("out")))
    assert first == again != []


@pytest.mark.parametrize(
    "command", [name if name == "ruler" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_a_copied_run_needs_no_shards(copied, capsys, command):
    status, _, errors = run(command, [str(copied), *COMMANDS[command].split()], capsys)
    assert status == 0, errors


def test_a_run_folder_keeps_at_most_1_mb_that_fill_the_longest_test(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path, held_out_frac=0.3)
    prepare(config, progress=False)
    tokenizer = load_tokenizer(shard_folder(config))
    whole = load_haystack(None, config, tokenizer)
    (tmp_path / "own.txt").write_text(whole)
    assert text_to_keep(None, config, tokenizer, 10**6) == whole  # as much as there is
    monkeypatch.setattr(haystacks, "KEPT_BYTES", 301)
    kept = text_to_keep(None, config, tokenizer, 50)
    assert whole.startswith(kept)
    assert 298 <= len(kept.encode()) <= 301
    assert text_to_keep(None, config, tokenizer, 300) is None  # tests are longer than that
    assert text_to_keep(str(tmp_path / "own.txt"), config, tokenizer, 50) is None  # what was named is not cut
    (tmp_path / KEPT).write_text(kept)
    assert load_haystack("gone.txt", config, tokenizer, tmp_path) == kept
    assert load_haystack(None, config, tokenizer, tmp_path / "earlier") == whole
