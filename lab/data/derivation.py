"""Upsampled shards: documents copied or left out, evenly mixed.

Each shard of the base has one derived shard, made by a task of its own. The held-out split, scored marks, sources and
counts of dropped documents are carried over. Documents are read by memory map and written one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.bars import Bar
from lab.data.config import Upsample
from lab.data.manifest import MANIFEST, SPLITS, Manifest, read_manifest, read_manifests, shards_in, task_name
from lab.data.mixture import Tally, record_of
from lab.data.shards import Shard, ShardWriter
from lab.data.upsampling import SEED, Floats, Ints, copies_of, draw_offsets, refuse_no_change, spread, weigh
from lab.errors import DataError
from lab.files import check_sizes, sha256, temporary_of

RECORD = "upsampling.json"


@dataclass(frozen=True, eq=False)
class Recipe:
    """The parameters that determine the copies of each document.

    Shapes: `weights`, `offsets` float64 (2 * n_sources,) by class, see `classes_of`.
    """

    longer_than: int
    sources: dict[str, int]
    weights: Floats
    offsets: Floats

    def copies(self, shard: Shard, before: Ints) -> Ints:
        """Count the copies of a shard's documents; `before` counts those of each class in earlier shards."""
        lengths, classes = classes_of(shard, self.sources, self.longer_than)
        return copies_of(lengths, classes, before, self.weights, self.offsets)


@dataclass(frozen=True, eq=False)
class Job:
    """One task: the shard to read, the recipe, and how many documents of each class earlier shards have."""

    task: int
    shard: Path
    recipe: Recipe
    before: Ints


def inputs_of(base: Path) -> dict[str, str]:
    """Return the hash of each base shard's manifest, which holds the hashes of its files."""
    return {shard.name: sha256(shard / MANIFEST) for shard in shards_in(base)}


def read_train(base: Path, progress: bool, what: str) -> Iterator[Shard | None]:
    """Open the training split of every shard in order, None where it is empty."""
    for path, manifest in Bar(read_manifests(base).items(), desc=what, disable=not progress):
        yield Shard.open(path, manifest, "train") if manifest["splits"]["train"]["tokens"] else None


def classes_of(shard: Shard, sources: dict[str, int], longer_than: int) -> tuple[Ints, Ints]:
    """Return documents' lengths and classes: 2 * source, plus 1 for long ones; both int64 (documents,)."""
    lengths = np.diff(shard.ends, prepend=0).astype(np.int64)
    numbers = np.array([sources[name] for name in shard.manifest["sources"]], dtype=np.int64)
    return lengths, 2 * numbers[shard.sources] + (lengths > longer_than)


def plan(base: Path, upsample: Upsample, *, progress: bool = True) -> tuple[list[Job], dict[str, Any]]:
    """Read the lengths of all documents, plan every task, and return a record of the effect as well.

    Raises: DataError for settings that change nothing.
    """
    shards = shards_in(base)
    names = sorted({name for path in shards for name in read_manifest(path)["sources"]})
    sources = {name: number for number, name in enumerate(names)}
    before, after = Tally.zero(2 * len(names)), Tally.zero(2 * len(names))
    earlier = []
    for shard in read_train(base, progress, "measure"):
        earlier.append(before.documents.copy())
        if shard is not None:
            lengths, classes = classes_of(shard, sources, upsample.longer_than)
            before.add(lengths, classes, np.ones_like(lengths))
    weights, kept = weigh(before.tokens.reshape(-1, 2), upsample)
    refuse_no_change(kept, upsample, max(before.lengths, default=0))
    recipe = Recipe(upsample.longer_than, sources, weights.ravel(), draw_offsets(weights.size))
    for shard, start in zip(read_train(base, progress, "count copies"), earlier):
        if shard is not None:
            lengths, classes = classes_of(shard, sources, upsample.longer_than)
            after.add(lengths, classes, recipe.copies(shard, start))
    if not after.tokens.sum():
        raise DataError(f"data.upsample.tokens={upsample.tokens}: leaves no document; raise it or leave it out")
    record = {**dataclasses.asdict(upsample), **record_of(names, before, after, weights, kept)}
    return [Job(task, path, recipe, earlier[task]) for task, path in enumerate(shards)], record


def derive_task(folder: Path, name: str, job: Job) -> Manifest:
    """Derive one shard; `name` is that of the upsampled corpus."""
    manifest = read_manifest(job.shard)
    check_sizes(job.shard, manifest["files"], DataError, "prepare the corpus again")
    writer = ShardWriter(
        temporary_of(folder / task_name(job.task)),
        manifest["dtype"],
        name=name,
        marks_scored=f"{SPLITS[0]}.scored.bin" in manifest["files"],
    )
    writer.skips.update(manifest["skips"])
    for split in SPLITS:
        if not manifest["splits"][split]["tokens"]:
            continue
        shard, order = Shard.open(job.shard, manifest, split), None
        if split == "train":
            copies = job.recipe.copies(shard, job.before)
            order = spread(copies, np.random.default_rng([SEED, job.task])).tolist()
        for document in range(len(shard.ends)) if order is None else order:
            part = shard.part(document)
            scored = None if shard.scored is None else shard.scored[part]
            writer.add(split, shard.tokens[part], manifest["sources"][shard.sources[document]], scored)
    return writer.close(folder / task_name(job.task))
