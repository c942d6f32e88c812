"""Shards, indices and tokenizers that are not what was written: refused before a run or when first read."""

import dataclasses
import json
import shutil
import zlib
from itertools import islice

import numpy as np
import pytest

from lab.data import blocks, manifests
from lab.data.module import PackedData
from lab.data.preparation import is_prepared, prepare, shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.train import session
from tests.data.stores import folder_bytes, read_shard, refused, text_config, write_corpus

BLOCK = 64  # bytes of a block in these tests


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(folder, other):
    path = folder / "task-00001" / "train.tokens.bin"
    path.write_bytes(path.read_bytes()[:-2])


def empty(folder, other):
    (folder / "task-00001" / "train.ends.bin").write_bytes(b"")


def swap(folder, other):
    (folder / "task-00000").rename(folder / "task-00009")
    (folder / "task-00001").rename(folder / "task-00000")
    (folder / "task-00009").rename(folder / "task-00001")


def copy_over(folder, other):
    shutil.rmtree(folder / "task-00001")
    shutil.copytree(folder / "task-00000", folder / "task-00001")


def take_from_other(folder, other):
    shutil.rmtree(folder / "task-00001")
    shutil.copytree(other / "task-00001", folder / "task-00001")


def retype(folder, other):
    """Write tokens of four bytes, with a manifest to match."""
    shard = folder / "task-00001"
    manifest = json.loads((shard / "manifest.json").read_text()) | {"dtype": "<u4"}
    for split in ("train", "held_out"):
        path = shard / f"{split}.tokens.bin"
        path.write_bytes(np.fromfile(path, "<u2").astype("<u4").tobytes())
    names = manifest["files"].keys() - {"checksums.bin"}
    manifest["files"] = blocks.write_checksums(shard, {name: blocks.entry_of(shard / name) for name in names})
    (shard / "manifest.json").write_text(json.dumps(manifest))


def exchange_tokens(folder, other):
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    vocab = values["model"]["vocab"]
    first, second = list(vocab)[40:42]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")))  # as long as before


CHANGES = {  # name: what is done to the folder, and what the line begins with below it
    "cut": (cut, "task-00001/train.tokens.bin: has {}"),
    "emptied": (empty, "task-00001/train.ends.bin: has 0 bytes, its manifest records {}"),
    "no_file": (lambda f, o: (f / "task-00001/train.ends.bin").unlink(), "task-00001/train.ends.bin: is missing, {}"),
    "missing": (lambda f, o: shutil.rmtree(f / "task-00001"), "task-00001: is missing, prepared.json records it"),
    "renamed": (lambda f, o: (f / "task-00001").rename(f / "task-00007"), "task-00001: is missing, {}"),
    "copied": (lambda f, o: shutil.copytree(f / "task-00000", f / "task-00003"), "task-00003: is not one of the 3 {}"),
    "copied_over": (copy_over, "task-00001/manifest.json: is that of task-00000, expected task-00001"),
    "swapped": (swap, "task-00000/manifest.json: is that of task-00001, expected task-00000"),
    "other_corpus": (take_from_other, "task-00001/manifest.json: has SHA-256 {}"),
    "other_dtype": (lambda f, o: rewrite(f / "task-00001/manifest.json", dtype="<u4"), "task-00001: its manifest {}"),
    "retyped": (retype, "task-00001/manifest.json: has SHA-256 {}"),
    "other_tokenizer": (exchange_tokens, "tokenizer.json: has SHA-256 {}"),
    "closing_file": (
        lambda f, o: rewrite(f / "prepared.json", tasks=2),
        "prepared.json: does not match its own SHA-256",
    ),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two corpora of three files, prepared with blocks of a few bytes: their configs."""
    place, configs = tmp_path_factory.mktemp("corpora"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", BLOCK)
        for name, rows in (("one", 40), ("other", 41)):
            write_corpus(place / name / "corpus", rows=rows)
            configs.append(text_config(place / name))
            prepare(configs[-1], progress=False)
    return configs


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(manifests, "VERIFY_BYTES", 0)  # as for a large corpus


@pytest.fixture
def here(corpora, tmp_path, small_blocks):
    """A copy of the first corpus: its config and folder, and the folder of the other."""
    config = dataclasses.replace(corpora[0], folder=str(tmp_path / "shards"))
    shutil.copytree(shard_folder(corpora[0]), shard_folder(config))
    return config, shard_folder(config), shard_folder(corpora[1])


def module_of(config, **settings):
    return PackedData(config, seed=1, micro_batch_tokens=64, n_streams=1, **settings)


def packs(config, n=40):
    data = module_of(config)
    data.prepare_data()
    data.setup("fit")
    batches = (data.on_before_batch_transfer(batch, 0) for batch in islice(data.train_dataloader(), n))
    return [batch["tokens"].tolist() for batch in batches]


@pytest.mark.parametrize("name", CHANGES)
def test_changed_shards_are_refused_before_the_first_step(here, name):
    config, folder, other = here
    change, rule = CHANGES[name]
    change(folder, other)
    with refused(f"{folder}/{rule}"):
        module_of(config).prepare_data()


def test_the_folder_of_another_corpus_is_refused(here):
    config, folder, other = here
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    with refused(f"{folder}: holds the shards of other settings, {{}}"):
        module_of(config).prepare_data()


def test_a_shard_that_comes_out_differently_when_it_is_prepared_again_is_refused(here):
    config, folder, _ = here
    shutil.rmtree(folder / "task-00001")
    prepare(config, progress=False)
    assert is_prepared(config), "the same bytes again"
    whole = folder_bytes(folder)
    retype(folder, None)
    with refused(f"{folder / 'task-00001'}: is not what prepared.json records"):
        prepare(config, progress=False)
    assert folder_bytes(folder)["prepared.json"] == whole["prepared.json"]


def sums_of(data, size=BLOCK):
    return [zlib.crc32(data[k : k + size]) for k in range(0, len(data), size)]


def test_checksums_are_those_of_each_block(here):
    _, folder, _ = here
    shard = folder / "task-00002"
    files = json.loads((shard / "manifest.json").read_text())["files"]
    own = files.pop("checksums.bin")
    expected = [number for name in files for number in sums_of((shard / name).read_bytes())]
    assert np.fromfile(shard / "checksums.bin", ">u4").tolist() == expected
    assert own["crc32"] == "".join(f"{number:08x}" for number in sums_of((shard / "checksums.bin").read_bytes()))
    assert not any("crc32" in entry for entry in files.values())


def test_a_flipped_bit_of_the_checksums_is_found_when_they_are_needed(here):
    _, folder, _ = here
    path = folder / "task-00001" / "checksums.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))  # of the last block of train.tokens.bin
    _, shard, _ = TokenStore.open(folder, "train").shards
    shard.tokens[:1]
    with refused(f"{path}: bytes {{}}"):
        shard.tokens[:]


@pytest.mark.parametrize("kind", ["tokens", "ends", "sources"])
def test_a_flipped_bit_of_a_large_corpus_is_found_when_its_block_is_read_and_not_before(here, kind):
    config, folder, _ = here
    path = folder / "task-00001" / f"train.{kind}.bin"
    data = bytearray(path.read_bytes())
    place = len(data) // 2
    data[place] ^= 4
    path.write_bytes(data)
    before, shard, after = TokenStore.open(folder, "train").shards
    first = place // BLOCK * BLOCK
    rule = f"{path}: bytes {first:,} to {min(first + BLOCK, len(data)) - 1:,} have CRC-32 {{}}"
    if kind != "tokens":
        with refused(rule):
            getattr(shard, kind)
        return
    documents = read_shard(folder / "task-00001", "train")
    assert shard.tokens[: first // 2].tolist() == [i for ids, _ in documents for i in ids][: first // 2]
    for part in (slice(0, first // 2 + 1), slice(place // 2, place // 2 + 1), slice(None)):
        with refused(rule):
            shard.tokens[part]
    assert min(len(before.tokens[:]), len(after.tokens[:])) > 100
    for prefetch in (0, 1):  # by the packing thread, too, in one line
        with refused(rule):
            packs(dataclasses.replace(config, prefetch=prefetch))


def write_as_before(folder, inline):
    """Write the manifests as earlier versions did: checksums of blocks of 64 KiB in them, or none."""
    closed = json.loads((folder / "prepared.json").read_text())
    (folder / "prepared.json").write_text(json.dumps({name: closed[name] for name in ("identity", "tasks")}))
    for path in folder.glob("task-*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["format"], manifest["task"], manifest["block_bytes"], manifest["files"]["checksums.bin"]
        (path.parent / "checksums.bin").unlink()
        for name, entry in manifest["files"].items() if inline else ():
            sums = sums_of((path.parent / name).read_bytes(), 2**16)
            entry["crc32"] = "".join(f"{number:08x}" for number in sums)
        path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("inline", [True, False])
def test_shards_of_earlier_versions_are_read_and_checked_by_what_they_record(here, inline):
    config, folder, _ = here
    expected = packs(config)
    assert session.unchecked(folder) is None
    write_as_before(folder, inline)
    assert packs(config) == expected
    warning = session.unchecked(folder)
    assert warning is None if inline else warning.endswith(f": python -m lab.verify {folder}")
    path = folder / "task-00001" / "train.tokens.bin"
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    if inline:
        with refused(f"{path}: bytes 0 to {len(data) - 1:,} have CRC-32 {{}}"):
            packs(config)
    path.write_bytes(data)
    shutil.copytree(folder / "task-00000", folder / "task-00003")
    with refused(f"{folder / 'task-00003'}: is not one of the 3 shards that prepared.json records"):
        packs(config)


@pytest.mark.parametrize("damage", ["flip", "other_shard", "empty", "no_checksum"])
def test_a_damaged_index_is_built_again(here, damage):
    _, folder, _ = here
    index = index_segments(TokenStore.open(folder, "train"), "natural", 5)
    expected = [index[k] for k in range(index.n)]
    path = folder / "task-00001" / ".groups-train-5.npy"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-6] ^= 1  # a number of the array
    other = (folder / "task-00002" / path.name).read_bytes()
    path.write_bytes({"flip": flipped, "other_shard": other, "empty": b"", "no_checksum": whole[:-4]}[damage])
    index = index_segments(TokenStore.open(folder, "train"), "natural", 5)
    assert [index[k] for k in range(index.n)] == expected
    assert path.read_bytes() == whole


def test_an_index_is_kept_where_the_folder_cannot_be_written(here, monkeypatch):
    _, folder, _ = here
    monkeypatch.setattr("lab.data.groups.write_atomic", lambda *_: (_ for _ in ()).throw(OSError("read-only")))
    assert index_segments(TokenStore.open(folder, "train"), "natural", 5).n > 100
    assert not list(folder.glob("*/.groups-*-5.npy"))
