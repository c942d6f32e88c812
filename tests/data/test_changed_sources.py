"""A corpus that changes after its shards were made is refused, and what only looks changed is not."""

import os
import shutil
from dataclasses import replace

import pytest

from lab.core import files
from lab.data import sources
from lab.data.config import TokenizerFile
from lab.data.preparation import prepare, prepare_missing, shard_folder
from tests.data.stores import refused, text_config, write_corpus


def rewrite(path):
    path.write_text(path.read_text().replace("number", "rebmun"))  # of the same size


@pytest.fixture
def config(tmp_path):
    """A prepared text corpus."""
    write_corpus(tmp_path / "corpus")
    prepare(text_config(tmp_path), progress=False)
    return text_config(tmp_path)


CHANGES = {
    "added": lambda folder: (folder / "more.txt").write_text("one more text"),
    "removed": lambda folder: (folder / "part0.jsonl").unlink(),
    "size": lambda folder: (folder / "part0.jsonl").write_text('{"text": "short"}'),
    "rewritten": lambda folder: rewrite(folder / "part0.jsonl"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_corpus_is_refused_unless_that_is_accepted(config, capsys, change):
    name = "more.txt" if change == "added" else "part0.jsonl"
    place = config.corpus.path
    CHANGES[change](sources.Path(place))
    for use in (prepare_missing, lambda config: prepare(config, progress=False)):
        with refused(f"data.corpus.path={place}: {name} "):
            use(config)
        use(replace(config, changed_sources="accept"))
        assert f"data.corpus.path={place}: {name} " in "".join(capsys.readouterr())
    assert replace(config, changed_sources="accept").shard_name == config.shard_name


def test_a_touched_file_is_hashed_once_and_absent_files_are_not_compared(config, monkeypatch, capsys):
    hashed = []
    own = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path, *first: hashed.append(path.name) or own(path, *first))
    prepare_missing(config)
    os.utime(sources.Path(config.corpus.path) / "part1.jsonl")
    prepare_missing(config)
    prepare_missing(config)
    assert hashed.count("part1.jsonl") == 1
    shutil.rmtree(config.corpus.path)
    prepare_missing(config)
    assert f"{config.corpus.path} is not here" in "".join(capsys.readouterr())


def test_a_changed_tokenizer_is_refused(tmp_path, bpe):
    write_corpus(tmp_path / "corpus")
    bpe.save(str(tmp_path / "tokenizer.json"))
    config = text_config(tmp_path, tokenizer=TokenizerFile(path=str(tmp_path), eos="<eos>"))
    prepare(config, progress=False)
    prepare_missing(config)
    text = bpe.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true', 1)
    (tmp_path / "tokenizer.json").write_text(text)
    with refused(f"data.corpus.path={config.corpus.path}: data.tokenizer.path={tmp_path} was changed"):
        prepare_missing(config)
    shutil.rmtree(shard_folder(config))
    prepare(config, progress=False)


def test_a_corpus_of_one_file_is_one_document_and_compared(tmp_path):
    (tmp_path / "book.txt").write_text("a book of one number.\n" * 40)
    config = text_config(tmp_path, held_out_frac=0.0)
    config = replace(config, corpus=replace(config.corpus, path=str(tmp_path / "book.txt")))
    assert prepare(config, progress=False).documents["train"] == 1
    rewrite(tmp_path / "book.txt")
    with refused(f"data.corpus.path={tmp_path / 'book.txt'}: book.txt "):
        prepare_missing(config)
