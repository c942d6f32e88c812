"""Upsampled shards, read back from their bytes, against their base."""

import json
import math
import shutil
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lab.data.config import Conversations, DataConfig, Upsample
from lab.data.derivation import derive_task, plan
from lab.data.manifest import shards_in
from lab.data.preparation import is_prepared, prepare, shard_folder, summarise, verify
from lab.data.shards import ShardWriter, TokenStore
from tests.data.slim import LONG, SHARE, SOURCES, TASKS, documents, flat, slim, slim_corpus, tokens_by_class
from tests.data.stores import folder_bytes, refused


def test_every_copy_is_a_document_of_its_base_shard_as_often_as_the_weights_say(config):
    prepare(config, progress=False)
    base, derived = documents(config.base), documents(config)
    assert len(base) == len(derived) == TASKS
    before = tokens_by_class(flat(base))
    for (source, is_long), _ in before.items():
        total = before[source, False] + before[source, True]
        part = before[source, is_long]
        keeps = before[source, True] in (0, total) or before[source, True] >= SHARE * total
        weight = 1 if keeps else (SHARE if is_long else 1 - SHARE) * total / part
        mine = [Counter(ids for s, ids in shard if s == source and (len(ids) > LONG) == is_long) for shard in derived]
        theirs = [Counter(ids for s, ids in shard if s == source and (len(ids) > LONG) == is_long) for shard in base]
        for got, had in zip(mine, theirs, strict=True):
            assert set(got) <= set(had)
            assert {got[ids] for ids in had} <= {math.floor(weight), math.ceil(weight)}
        n_copies, n_documents = (sum(sum(c.values()) for c in counters) for counters in (mine, theirs))
        assert abs(n_copies - weight * n_documents) < 1


def test_the_mixture_is_kept_and_long_documents_make_the_share(config):
    config = replace(config, upsample=replace(config.upsample, tokens=200_000))  # so many that rounding is small
    prepare(config, progress=False)
    before, after = tokens_by_class(flat(documents(config.base))), tokens_by_class(flat(documents(config)))
    assert abs(after.total() / 200_000 - 1) < 0.02
    for source in SOURCES:
        mine, theirs = ({k: c[source, k] for k in (False, True)} for c in (after, before))
        assert sum(mine.values()) / after.total() == pytest.approx(sum(theirs.values()) / before.total(), abs=0.01)
    assert {source: before[source, True] > 0 for source in SOURCES} == {s: s != "RedPajamaC4" for s in SOURCES}
    for source in ("RedPajamaBook", "RedPajamaGithub"):
        had = before[source, True] / (before[source, True] + before[source, False])
        got = after[source, True] / (after[source, True] + after[source, False])
        assert got == pytest.approx(max(had, SHARE), abs=0.02)
    assert after["RedPajamaArXiv", False] == after["RedPajamaC4", True] == 0


def test_the_held_out_split_is_carried_over(config):
    prepare(config, progress=False)
    assert documents(config, "held_out") == documents(config.base, "held_out")
    assert len(flat(documents(config, "held_out"))) > 5
    tokenizers = [(shard_folder(c) / "tokenizer.json").read_bytes() for c in (config, config.base)]
    assert tokenizers[0] == tokenizers[1]


def test_long_and_short_documents_of_all_sources_are_mixed(config):
    prepare(config, progress=False)
    for shard in documents(config):
        half = len(shard) // 2
        for part in (shard[:half], shard[half:]):
            assert {source for source, _ in part} == set(SOURCES)
            assert 0.3 < sum(len(ids) for _, ids in part) / sum(len(ids) for _, ids in shard) < 0.7


def test_the_result_is_a_function_of_the_config_whatever_the_workers(config, tmp_path):
    prepare(config, progress=False)
    other = replace(config, folder=str(tmp_path / "by_two"))
    prepare(other, workers=2, progress=False)
    assert folder_bytes(shard_folder(other)) == folder_bytes(shard_folder(config))


def test_a_missing_task_is_made_again_to_the_byte_and_the_others_are_left(config):
    prepare(config, progress=False)
    folder = shard_folder(config)
    before = folder_bytes(folder)
    shutil.rmtree(folder / "task-00001")
    (folder / "prepared.json").unlink()
    half = folder / ".task-00001.tmp"
    half.mkdir()
    (half / "train.tokens.bin").write_bytes(b"of a task that was killed")
    stamps = [(folder / f"task-0000{k}" / "manifest.json").stat().st_mtime_ns for k in (0, 2)]
    assert not is_prepared(config)
    prepare(config, progress=False)
    assert is_prepared(config)
    assert folder_bytes(folder) == before
    assert [(folder / f"task-0000{k}" / "manifest.json").stat().st_mtime_ns for k in (0, 2)] == stamps


def test_shares_of_a_job_array_complete_to_the_same(config, tmp_path):
    prepare(config, progress=False)
    other = replace(config, folder=str(tmp_path / "by_shares"))
    first = prepare(other, tasks=[0, 2], progress=False)
    assert first.folder == shard_folder(other.base), "the base is not whole yet"
    prepare(other, tasks=[1], progress=False)  # completes the base and derives its own
    assert len(shards_in(shard_folder(other))) == 1
    assert not is_prepared(other)
    prepare(other, tasks=[0, 2], progress=False)
    assert is_prepared(other)
    assert folder_bytes(shard_folder(other)) == folder_bytes(shard_folder(config))


def test_the_base_is_shared_and_not_made_again(config):
    prepare(config.base, progress=False)
    folder = shard_folder(config.base)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    shutil.rmtree(config.corpus.path)
    prepare(config, progress=False)
    prepare(replace(config, upsample=replace(config.upsample, share=0.85)), progress=False)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert len(list(folder.parent.iterdir())) == 3


def test_derived_shards_stand_without_their_base(config):
    done = prepare(config, progress=False)
    shutil.rmtree(shard_folder(config.base))
    shutil.rmtree(config.corpus.path)
    assert is_prepared(config)
    assert prepare(config, progress=False) == summarise(shard_folder(config)) == done
    verify(config)
    assert TokenStore.open(shard_folder(config), "train").n_tokens == done.tokens["train"]


def test_a_base_that_was_made_anew_is_noticed(config, tmp_path, tokenizer):
    prepare(config, progress=False)
    shutil.rmtree(shard_folder(config.base))
    shutil.rmtree(tmp_path / "corpus")
    slim_corpus(tmp_path / "corpus", seed=1)
    prepare(config.base, progress=False)
    assert not is_prepared(config)
    folder = shard_folder(config)
    with refused(f"{folder}: task-00000 and 2 others were added, removed or changed since preparation began; "):
        prepare(config, progress=False)
    shutil.rmtree(folder)
    prepare(config, progress=False)
    assert is_prepared(config)


def test_scored_marks_are_carried_over(tmp_path, tokenizer):
    (tmp_path / "corpus").mkdir()
    generator = np.random.default_rng(0)
    rows = []
    for number in range(40):
        said = [" ".join(f"w{n}" for n in generator.integers(1, 500, size)) for size in (5, 3 + 4 * (number % 8))]
        rows.append({"conversations": [{"from": "human", "value": said[0]}, {"from": "gpt", "value": said[1]}]})
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    corpus = Conversations(path=str(tmp_path / "corpus" / "a.jsonl"))
    upsample = Upsample(longer_than=30, share=0.9)
    config = DataConfig(corpus=corpus, tokenizer=tokenizer, folder=str(tmp_path / "shards"), upsample=upsample)
    prepare(config, progress=False)
    marked = {}
    for one in (config.base, config):
        store = TokenStore.open(shard_folder(one), "train")
        ends = np.concatenate([shard.ends for shard in store.shards])
        starts = [0, *ends[:-1].tolist()]
        spans = [(start, int(end) - start) for start, end in zip(starts, ends)]
        marked[one.upsample] = [(tuple(store.read(*span)), tuple(store.scored(*span))) for span in spans]
    assert set(marked[upsample]) < set(marked[None])
    assert sum(sum(scored) for _, scored in marked[upsample]) > 0
    assert len(marked[upsample]) != len(set(marked[upsample])), "some are copied"


def test_what_was_left_out_of_the_base_is_still_told(tmp_path, tokenizer):
    slim_corpus(tmp_path / "corpus")
    (tmp_path / "corpus" / "last.jsonl").write_text("not JSON\n")
    config = slim(tmp_path, tokenizer)
    assert prepare(config, progress=False).skips == prepare(config.base, progress=False).skips == {"not JSON": 1}


def test_a_shard_is_never_held_in_memory(tmp_path):
    numbers = np.random.default_rng(0).integers(60_000, size=4_000_000).tolist()
    writer = ShardWriter(tmp_path / ".writing", "<u2")
    for start in range(0, len(numbers), 20_000):
        writer.add("train", numbers[start : start + 19_000], f"source{start // 200_000}")
        writer.add("train", numbers[start + 19_000 : start + 20_000], f"source{start // 200_000}")
    (tmp_path / "base").mkdir()
    writer.close(tmp_path / "base" / "task-00000")
    (job,), _ = plan(tmp_path / "base", Upsample(share=0.99), progress=False)
    tracemalloc.start()
    derive_task(tmp_path, "derived", job)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = (tmp_path / "task-00000" / "train.tokens.bin").stat().st_size
    assert size > 7_500_000
    assert peak < size / 8
