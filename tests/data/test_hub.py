"""A data set of the hub: its files are listed once for all tasks of a process, and a task reads its own rows only."""

import dataclasses
from collections import Counter

import pytest

from lab.data import corpora
from lab.data.config import Bpe, DataConfig, Slimpajama
from lab.data.preparation import prepare, shard_folder

FILES, ROWS, TASKS = 6, 10, 3


@dataclasses.dataclass
class Stream:
    """What `load_dataset` returns, as far as it is used: files of rows, cut into consecutive parts."""

    files: list[int]
    read: Counter[int]

    @property
    def num_shards(self):
        return len(self.files)

    def shard(self, num_shards, index):
        size = len(self.files) // num_shards
        return dataclasses.replace(self, files=self.files[index * size : (index + 1) * size])

    def __iter__(self):
        for file in self.files:
            for row in range(ROWS):
                self.read[file] += 1
                yield {"text": f"file {file} row {row} of words", "meta": {"redpajama_set_name": "Web"}}


@pytest.fixture
def hub(monkeypatch):
    """Stand in for the hub: the names that were listed, and the rows read of each file."""
    listed, read = [], Counter()

    def load_dataset(name, split, streaming):
        listed.append((name, split, streaming))
        return Stream(list(range(FILES)), read)

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
    monkeypatch.setattr(corpora, "HUB_DATASET", "owner/name")
    monkeypatch.setattr(corpora, "SLIMPAJAMA_TASKS", TASKS)
    monkeypatch.setattr(DataConfig, "sample_documents", ROWS)
    corpora.open_hub.cache_clear()
    yield listed, read
    corpora.open_hub.cache_clear()


def prepare_from(tmp_path, tasks=None):
    corpus = Slimpajama()
    tokenizer = Bpe(vocab_size=300)
    config = DataConfig(corpus=corpus, tokenizer=tokenizer, folder=str(tmp_path), held_out_frac=0.0)
    return prepare(config, tasks=tasks, progress=False), shard_folder(config)


def test_a_range_of_tasks_lists_it_once_and_reads_none_of_the_others(tmp_path, hub):
    listed, read = hub
    prepare_from(tmp_path, tasks=[0])
    listed.clear(), read.clear()
    corpora.open_hub.cache_clear()  # as in another process of the array
    prepared, folder = prepare_from(tmp_path, tasks=range(1, TASKS))
    assert (len(listed), read) == (1, dict.fromkeys(range(2, FILES), ROWS))
    assert sorted(path.name for path in folder.glob("task-*")) == ["task-00000", "task-00001", "task-00002"]
    assert prepared.documents["train"] == FILES * ROWS
