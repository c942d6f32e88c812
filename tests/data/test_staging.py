"""Shards copied to a local disk: once for each node, whole or not at all, and the same batches from the copy."""

import dataclasses
import errno
import itertools
import multiprocessing
import shutil

import pytest

from lab.data import staging
from lab.data.module import PackedData
from lab.data.preparation import prepare, shard_folder
from lab.data.staging import stage, staged_folder
from lab.errors import ConfigError, DataError, DiskError
from tests.data.stores import folder_bytes, text_config, write_corpus
from tests.refusals import refused

FORK = multiprocessing.get_context("fork")
LIMIT_S = 60


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    write_corpus(place / "corpus", files=5)
    prepare(text_config(place), progress=False)
    return text_config(place)


@pytest.fixture
def config(corpus, tmp_path):
    """A copy of the corpus, to be staged to a folder that is not there yet."""
    here = dataclasses.replace(corpus, folder=str(tmp_path / "shards"), stage_to=str(tmp_path / "local" / "disk"))
    shutil.copytree(shard_folder(corpus), shard_folder(here))
    return here


def packs(config):
    data = PackedData(config, seed=1, micro_batch_tokens=64, n_streams=1)
    data.prepare_data()
    data.setup("fit")
    return [batch["tokens"].tolist() for batch in itertools.islice(data.train_dataloader(), 20)], data


def test_a_run_reads_the_copy_and_trains_on_the_same_batches(config):
    expected, _ = packs(dataclasses.replace(config, stage_to=None))
    found, data = packs(config)
    assert found == expected
    assert {shard.folder.parent for shard in data.store.shards} == {staged_folder(config)}
    assert folder_bytes(staged_folder(config)) == folder_bytes(shard_folder(config))


def stage_and_note(config, log):
    copy = staging.copy_shard

    def noted(shard, *arguments):
        with log.open("a") as file:
            file.write(f"{shard.name}\n")
        copy(shard, *arguments)

    staging.copy_shard = noted
    stage(config)


def test_two_processes_of_a_node_copy_each_shard_once(config, tmp_path):
    log = tmp_path / "log"
    both = [FORK.Process(target=stage_and_note, args=(config, log), daemon=True) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(LIMIT_S)
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted(log.read_text().split()) == [f"task-{task:05d}" for task in range(5)]
    assert folder_bytes(staged_folder(config)) == folder_bytes(shard_folder(config))


@pytest.mark.parametrize("damage", ["cut", "other_manifest", "missing", "half_written"])
def test_complete_shards_are_kept_and_others_copied_again(config, monkeypatch, damage):
    stage(config)
    target, whole, copied = staged_folder(config), folder_bytes(shard_folder(config)), []
    shard = target / "task-00003"
    if damage == "cut":
        (shard / "train.tokens.bin").write_bytes(b"12")
    elif damage == "other_manifest":
        (shard / "manifest.json").write_bytes((target / "task-00002" / "manifest.json").read_bytes())
    else:
        shard.rename(target / (".task-00003.tmp-elsewhere-1-r00000000" if damage == "half_written" else "../other"))
    copy = staging.copy_shard
    monkeypatch.setattr(staging, "copy_shard", lambda path, *rest: (copied.append(path.name), copy(path, *rest)))
    stage(config)
    stage(config)
    assert copied == ["task-00003"]
    assert {name: data for name, data in folder_bytes(target).items() if ".tmp-elsewhere" not in name} == whole


def test_a_copy_that_differs_is_refused_and_so_is_a_shard_that_does(config, monkeypatch):
    copyfile = shutil.copyfile
    with monkeypatch.context() as patch:

        def flip(source, target):
            copyfile(source, target)
            if target.name == "train.tokens.bin":
                data = target.read_bytes()
                target.write_bytes(bytes([data[0] ^ 1]) + data[1:])

        patch.setattr(shutil, "copyfile", flip)
        with refused(f"{staged_folder(config)}/.task-0000", error=DataError):
            stage(config)
    path = shard_folder(config) / "task-00002" / "train.tokens.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with refused(f"{path}: has SHA-256 {{}}", error=DataError):
        stage(config)
    assert not list(staged_folder(config).glob(".task-*")), "nothing half written is left"


def test_a_full_disk_is_one_line_before_and_while_copying(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(staging, "free_bytes", lambda _: 100)
        with refused(f"data.stage_to={config.stage_to}: {staged_folder(config)}: needs {{}}", error=DiskError):
            stage(config)

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with refused(f"{staged_folder(config)}/task-0000", error=DiskError):
        stage(config)
    assert not list(staged_folder(config).glob("*task-*"))


def test_a_folder_that_cannot_be_made_is_one_line(config, tmp_path):
    (tmp_path / "local").write_text("a file")
    with refused(f"data.stage_to={config.stage_to}: cannot be written (", error=ConfigError):
        stage(config)
