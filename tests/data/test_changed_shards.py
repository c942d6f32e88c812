"""Shards and tokenizers that are not what was written: refused in one line, when opened or by their hashes."""

import dataclasses
import json
import shutil

import pytest

from lab.data import synthetic
from lab.data.config import DataConfig, Synthetic
from lab.data.preparation import prepare, shard_folder
from tests.data.stores import module_of, refused, text_config, write_corpus

SHARD = "task-00001"


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(folder, other):
    path = folder / SHARD / "train.tokens.bin"
    path.write_bytes(path.read_bytes()[:-2])


def swap(folder, other):
    (folder / "task-00000").rename(folder / "task-00009")
    (folder / SHARD).rename(folder / "task-00000")
    (folder / "task-00009").rename(folder / SHARD)


def replace(folder, source):
    shutil.rmtree(folder / SHARD)
    shutil.copytree(source, folder / SHARD)


def exchange_tokens(folder, other):
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    vocab = values["model"]["vocab"]
    first, second = list(vocab)[40:42]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")))  # as long as before


CHANGES = {  # name: what is done to the folder, and what the line begins with below it
    "other_folder": (lambda f, o: (shutil.rmtree(f), shutil.copytree(o, f)), ": contains "),
    "cut": (cut, f"{SHARD}/train.tokens.bin: has {{}}"),
    "no_file": (lambda f, o: (f / SHARD / "train.ends.bin").unlink(), f"{SHARD}/train.ends.bin: is missing; {{}}"),
    "missing": (lambda f, o: shutil.rmtree(f / SHARD), f"{SHARD}: is missing, prepared.json records it"),
    "copied": (lambda f, o: shutil.copytree(f / "task-00000", f / "task-00003"), "task-00003: is not one of the 3 {}"),
    "copied_over": (lambda f, o: replace(f, f / "task-00000"), f"{SHARD}/manifest.json: is that of task-00000"),
    "swapped": (swap, "task-00000/manifest.json: is that of task-00001"),
    "other_corpus": (lambda f, o: replace(f, o / SHARD), f"{SHARD}: is a shard of {{}}"),
    "other_tokenizer": (exchange_tokens, "tokenizer.json: has SHA-256 {}"),
    "no_manifest": (lambda f, o: (f / SHARD / "manifest.json").unlink(), f"{SHARD}/manifest.json: cannot be read {{}}"),
    "broken_record": (lambda f, o: rewrite(f / "prepared.json", tasks="x"), "prepared.json: cannot be read {}"),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two corpora of three files: their configs."""
    place, configs = tmp_path_factory.mktemp("corpora"), []
    for name, rows in (("one", 40), ("other", 41)):
        write_corpus(place / name / "corpus", rows=rows)
        configs.append(text_config(place / name))
        prepare(configs[-1], progress=False)
    return configs


@pytest.fixture
def here(corpora, tmp_path):
    """A copy of the first corpus: its config and folder, and the folder of the other."""
    config = dataclasses.replace(corpora[0], folder=str(tmp_path / "shards"))
    shutil.copytree(shard_folder(corpora[0]), shard_folder(config))
    return config, shard_folder(config), shard_folder(corpora[1])


@pytest.mark.parametrize("name", CHANGES)
def test_changed_shards_are_refused_before_the_first_step(here, name):
    config, folder, other = here
    change, rule = CHANGES[name]
    change(folder, other)
    with refused(f"{folder}{rule}" if rule.startswith(":") else f"{folder}/{rule}"):
        module_of(config, micro_batch_tokens=64).prepare_data()


def test_another_wording_makes_other_shards(tmp_path, monkeypatch):
    """Or a model is trained on one wording and probed with another."""
    config = DataConfig(corpus=Synthetic(documents=20, words=16), folder=str(tmp_path))
    before = shard_folder(config)
    for name in ("TASK", "NEEDLE", "QUESTION", "ANSWER_PREFIX"):
        with monkeypatch.context() as patch:
            patch.setattr(synthetic, name, getattr(synthetic, name).replace("magic", "odd").replace(" ", "  ", 1))
            assert shard_folder(config) != before, name
