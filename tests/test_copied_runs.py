import importlib
import shutil
from pathlib import Path

from lab.config import load_experiment
from lab.data.config import Bpe, DataConfig, Text
from lab.data.module import PackedData
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.probe import needles
from lab.probe.needles import KEPT, load_haystack, text_to_keep
from lab.train.starting import Start, start_folder
from tests.data.stores import WORDS, text_config, write_corpus
from tests.eval.commands import lines_of
from tests.opened import adopted, write_run


def probe(run):
    words = [run, "--step=512", "--tests=2", "--max_length=512", "-o", "out"]
    assert importlib.import_module("eval.probe").main(words) == 0
    return [{**row, "seconds": 0} for row in lines_of("out", "probe", tests=True)]


def test_a_copied_run_is_probed_with_the_same_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for number in range(60):
        Path(f"corpus/{number}.txt").write_text(" ".join(f"{WORDS[number * k % 8]} {number + k}" for k in range(60)))
    corpus, tokenizer = Text(path="corpus"), Bpe(vocab_size=400)
    data = DataConfig(corpus=corpus, tokenizer=tokenizer, window=512, held_out_frac=0.3, folder="shards")
    prepare(data, progress=False)
    experiment = load_experiment(write_run(Path("runs/own"), data) / "config.yaml")
    start_folder(Start(experiment), PackedData(experiment), threads=1)
    adopted(Path("runs/own"))
    first = probe("runs/own")
    shutil.copytree("runs/own", "elsewhere/own")
    monkeypatch.chdir("elsewhere")
    assert first == probe("own") != []


def test_a_run_folder_keeps_at_most_1_mb_that_fill_the_longest_test(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path, held_out_frac=0.3)
    prepare(config, progress=False)
    tokenizer = load_tokenizer(shard_folder(config))
    whole = load_haystack(None, config, tokenizer)
    assert text_to_keep(None, config, tokenizer, 10**6) == whole  # as much as there is
    monkeypatch.setattr(needles, "KEPT_BYTES", 301)
    kept = text_to_keep(None, config, tokenizer, 50)
    assert whole.startswith(kept)
    assert 298 <= len(kept.encode()) <= 301
    assert text_to_keep(None, config, tokenizer, 300) is None  # tests are longer than that
    (tmp_path / KEPT).write_text(kept)
    assert load_haystack("gone.txt", config, tokenizer, tmp_path) == kept
