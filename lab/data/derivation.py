"""Token shards derived from others: documents copied or left out, evenly mixed or with related ones as neighbours.

Each shard of the base has one derived shard, made by a task of its own. The held-out split, scored marks, sources and
counts of dropped documents are carried over. Documents are read by memory map and written one by one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.bars import Bar
from lab.data.closing import shards_in
from lab.data.config import Upsample
from lab.data.manifests import SPLITS, check_shard, read_manifest
from lab.data.mixture import Tally, record_of
from lab.data.related import related_order
from lab.data.shards import Shard, ShardWriter, open_shard
from lab.data.tasks import task_name
from lab.data.upsampling import Floats, Ints, copies_of, draw_offsets, refuse_no_change, spread, weigh
from lab.errors import DataError
from lab.files import sha256, temporary_of, write_json

RECORD = "upsampling.json"
NEIGHBOURS = "neighbours.json"  # of a shard, and of the folder


@dataclass(frozen=True, eq=False)
class Recipe:
    """The parameters that determine the copies of each document.

    Shapes: `weights`, `offsets` float64 (2 * n_sources,) by class, see `classes_of`.
    """

    longer_than: int
    seed: int
    sources: dict[str, int]
    weights: Floats
    offsets: Floats

    def copies(self, shard: Shard, before: Ints) -> Ints:
        """Count the copies of a shard's documents; `before` counts those of each class in earlier shards."""
        lengths, classes = classes_of(shard, self.sources, self.longer_than)
        return copies_of(lengths, classes, before, self.weights, self.offsets)


@dataclass(frozen=True, eq=False)
class Job:
    """One task: the shard to read, its order, and the recipe of copies if documents are copied."""

    task: int
    shard: Path
    related: bool
    recipe: Recipe | None
    before: Ints | None


def inputs_of(base: Path) -> dict[str, str]:
    """Return the hash of each base shard's manifest, which holds the hashes of its files."""
    return {shard.name: sha256(shard / "manifest.json") for shard in shards_in(base)}


def read_train(base: Path, progress: bool, what: str) -> Iterator[Shard | None]:
    """Open the training split of every shard in order, None where it is empty."""
    for path in Bar(shards_in(base), desc=what, disable=not progress):
        manifest = read_manifest(path)
        check_shard(path, manifest, hashes=False)
        yield open_shard(path, manifest, "train") if manifest["splits"]["train"]["tokens"] else None


def classes_of(shard: Shard, sources: dict[str, int], longer_than: int) -> tuple[Ints, Ints]:
    """Return documents' lengths and classes: 2 * source, plus 1 for long ones; both int64 (documents,)."""
    lengths = np.diff(shard.ends, prepend=0).astype(np.int64)
    numbers = np.array([sources[name] for name in shard.source_names], dtype=np.int64)
    return lengths, 2 * numbers[shard.sources] + (lengths > longer_than)


def plan(
    base: Path, upsample: Upsample | None, *, related: bool, progress: bool = True
) -> tuple[list[Job], dict[str, Any] | None]:
    """Read the lengths of all documents and plan every task; with upsampling, also return a record of its effect.

    Raises: DataError for settings that change nothing.
    """
    shards = shards_in(base)
    if upsample is None:
        return [Job(task, path, related, None, None) for task, path in enumerate(shards)], None
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
    recipe = Recipe(
        upsample.longer_than, upsample.seed, sources, weights.ravel(), draw_offsets(weights.size, upsample.seed)
    )
    for shard, start in zip(read_train(base, progress, "count copies"), earlier):
        if shard is not None:
            lengths, classes = classes_of(shard, sources, upsample.longer_than)
            after.add(lengths, classes, recipe.copies(shard, start))
    if not after.tokens.sum():
        raise DataError(f"data.upsample.tokens={upsample.tokens}: leaves no document; raise it or leave it out")
    record = {**dataclasses.asdict(upsample), **record_of(names, before, after, weights, kept)}
    return [Job(task, path, related, recipe, earlier[task]) for task, path in enumerate(shards)], record


def derive_task(folder: Path, job: Job) -> dict[str, Any]:
    """Derive one shard."""
    temporary = temporary_of(folder / task_name(job.task))
    manifest = read_manifest(job.shard)
    check_shard(job.shard, manifest, hashes=False)
    marks = (job.shard / f"{SPLITS[0]}.scored.bin").exists()
    writer = ShardWriter(temporary, manifest["dtype"], marks_scored=marks)
    writer.skips.update(manifest["skips"])
    for split in SPLITS:
        if manifest["splits"][split]["tokens"]:
            shard = open_shard(job.shard, manifest, split)
            copy_documents(writer, shard, order_of(job, shard, temporary) if split == "train" else None)
    return writer.close(folder / task_name(job.task))


def order_of(job: Job, shard: Shard, temporary: Path) -> Ints:
    """Determine the order of the documents in a derived shard."""
    copies = np.ones(len(shard.ends), dtype=np.int64)
    if job.recipe is not None:
        assert job.before is not None, "a recipe needs the documents of earlier shards"
        copies = job.recipe.copies(shard, job.before)
    if not job.related:
        assert job.recipe is not None, "a derived shard is upsampled or in another order"
        return spread(copies, np.random.default_rng([job.recipe.seed, job.task]))
    order, *neighbours = related_order(shard, copies)
    found = {when: dataclasses.asdict(part) for when, part in zip(("before", "after"), neighbours)}
    write_json(temporary / NEIGHBOURS, found)
    return order


def copy_documents(writer: ShardWriter, shard: Shard, order: Ints | None) -> None:
    """Write documents in an order; None keeps that of the shard."""
    for document in range(len(shard.ends)) if order is None else order.tolist():
        part = shard.part(document)
        scored = None if shard.scored is None else shard.scored[part]
        writer.add(shard.split, shard.tokens[part], shard.source_names[shard.sources[document]], scored)


def similarity_of_neighbours(folder: Path) -> dict[str, float]:
    """Compute the mean similarity of neighbours over all shards of a related order, before and after."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"task-*/{NEIGHBOURS}"))]
    pairs = {when: sum(part[when]["pairs"] for part in found) for when in ("before", "after")}
    return {when: sum(part[when]["total"] for part in found) / max(1, pairs[when]) for when in pairs}
