"""Upsampled shards: long documents more often and short ones less within each source, whose share is kept.

    w(s, long)  = g r T_s / A_s                expected copies of a document of source s, of over `longer_than` tokens
    w(s, short) = g (1 - r) T_s / (T_s - A_s)  expected copies of any other document of source s
    g = tokens / (sum of T_s over s)           1 without the setting `tokens`

T_s are the tokens of source s, A_s the tokens of its long documents, r is `share`. Source s then has g T_s tokens, of
which r are in long documents: every source keeps its share of the tokens and changes in length. All documents have
w = g in a source without long documents, with nothing else, or with A_s >= r T_s.

Copies: the k-th document of its source and class (long or short) is copied floor(k w + u) - floor((k - 1) w + u)
times. Each class has one uniform number u. Documents are counted shard after shard, sorted by length within a shard.
So a document is copied w times in expectation, and a class deviates by less than one copy. In one shard a class
deviates by at most the tokens of its longest document (summation by parts, as lengths rise).

Source: Fu et al. 2024, arXiv:2402.10171, as used in AnchorAttention (arXiv:2411.13476, section 4.1 and appendix C) and
LongRecipe (arXiv:2409.00509, section 5.2). In AnchorAttention's Table 9 the shares of sources change by up to 7 points;
here none changes.

A task makes one upsampled shard from one shard of the base. The held-out split, scored marks, sources and counts of
dropped documents are carried over. Documents are read by memory map and written one by one.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.core.errors import DataError
from lab.core.files import sha256
from lab.core.types import FloatArray, IntArray, Row
from lab.data import shards
from lab.data.config import Upsample
from lab.data.shards import SPLITS, Shard
from lab.data.tokenizing import TokenShardWriter

RECORD = "upsampling.json"
SEED = 0  # of the choice of copied documents, and of their order
OFFSETS = 2**20  # values of u: few enough that k + u is exact in float64 for every k below 2**33


@dataclass(frozen=True, eq=False)
class Plan:
    """What every task needs: the base's shards, the weights of all classes, and their documents before each shard.

    Shapes: `weights`, `offsets` float64 (2 * n_sources,), `before` int64 (2 * n_sources,), by class: see `classify`.
    """

    shards: list[Path]
    sources: list[str]
    weights: FloatArray
    offsets: FloatArray
    before: dict[Path, IntArray]

    def count_copies(self, shard: Shard) -> IntArray:
        """Count the copies of every document of a shard: int64 (documents,)."""
        lengths, classes = classify(shard, self.sources)
        # by class, then by length; documents of equal length keep their order
        order = np.lexsort((lengths, classes))
        sorted_classes = classes[order]
        first = np.searchsorted(sorted_classes, np.arange(len(self.weights)))
        # each document's number within its class, from 0, over all shards
        numbers = self.before[shard.folder][sorted_classes] + np.arange(len(order)) - first[sorted_classes]
        w, u = self.weights[sorted_classes], self.offsets[sorted_classes]
        copies = np.empty_like(order)
        copies[order] = np.floor((numbers + 1) * w + u) - np.floor(numbers * w + u)
        return copies


def hash_manifests(base: Path) -> dict[str, str]:
    """Return the hash of each base shard's manifest, which contains the hashes of its files."""
    return {shard.name: sha256(shard / shards.MANIFEST) for shard in shards.shards_in(base)}


def classify(shard: Shard, sources: list[str]) -> tuple[IntArray, IntArray]:
    """Return documents' lengths and classes: 2 * source, plus 1 for long ones; both int64 (documents,)."""
    lengths = np.diff(shard.ends, prepend=0)
    # a shard numbers its sources by itself; classes number those of all shards
    numbers = np.searchsorted(sources, shard.manifest["sources"])
    return lengths, 2 * numbers[shard.sources] + (lengths > Upsample.longer_than)


def count_by_class(shard: Shard, sources: list[str], copies: IntArray | int = 1) -> IntArray:
    """Count documents and tokens of a shard by class, each document with its copies: int64 (2, n_classes)."""
    lengths, classes = classify(shard, sources)
    sums = np.zeros((2, 2 * len(sources)), dtype=np.int64)
    np.add.at(sums[0], classes, copies)
    np.add.at(sums[1], classes, copies * lengths)
    return sums


def plan_upsampling(base: Path, upsample: Upsample) -> tuple[Plan, list[Row]]:
    """Read the lengths of all documents, plan all tasks, and return rows about the effect on each source as well.

    Raises: DataError for settings that change nothing.
    """
    manifests = shards.read_manifests(base)
    sources = sorted(set().union(*(manifest["sources"] for manifest in manifests.values())))
    opened = Shard.open_all(manifests, "train")
    totals = np.zeros((2, 2 * len(sources)), dtype=np.int64)
    before = {}
    for shard in opened:
        before[shard.folder] = totals[0]
        totals = totals + count_by_class(shard, sources)
    weights = weigh(totals[1].reshape(-1, 2), upsample)
    if (weights[:, 0] == weights[:, 1]).all():
        raise DataError(
            f"data.upsample.share={upsample.share}: changes no source (none has too few tokens in documents of more "
            f"than {upsample.longer_than:,} tokens); raise it, or omit it"
        )
    offsets = np.random.default_rng(SEED).integers(OFFSETS, size=weights.size) / OFFSETS
    plan = Plan(list(manifests), sources, weights.ravel(), offsets, before)
    after = np.sum([count_by_class(shard, sources, plan.count_copies(shard)) for shard in opened], axis=0)
    if not after.any():
        raise DataError(f"data.upsample.tokens={upsample.tokens}: leaves no document; raise it or omit it")
    import pandas as pd  # not at the top: its import takes longer than reading a config

    table = pd.DataFrame({"source": sources})
    for when, counts in (("before", totals), ("after", after)):
        documents, tokens = counts.reshape(2, -1, 2)
        table[f"documents_{when}"], table[f"tokens_{when}"] = documents.sum(1), tokens.sum(1)
        table[f"long_{when}"] = tokens[:, 1] / tokens.sum(1).clip(1)
    table[["copies_of_short", "copies_of_long"]] = weights
    return plan, table.sort_values("tokens_before", ascending=False).to_dict("records")


def derive_task(folder: Path, name: str, plan: Plan, task: int) -> shards.Manifest:
    """Derive one shard; `name` is that of the upsampled corpus."""
    base = plan.shards[task]
    manifest = shards.read_shard_manifest(base)
    marks_scored = "train.scored.bin" in manifest["files"]
    writer = TokenShardWriter(folder / base.name, manifest["dtype"], name=name, marks_scored=marks_scored)
    writer.skips.update(manifest["skips"])
    writer.inputs = manifest.get("inputs", {})
    for split in SPLITS:
        for shard in Shard.open_all({base: manifest}, split):
            order = np.arange(len(shard.ends))
            if split == "train":  # each shard has an order of its own, whichever task makes it
                order = order_copies(plan.count_copies(shard), np.random.default_rng([SEED, task]))
            for document in order.tolist():
                part = shard.part(document)
                source = manifest["sources"][shard.sources[document]]
                n_bytes = None if shard.bytes is None else shard.bytes[part]
                writer.add(split, shard.tokens[part], source, shard.scored[part], n_bytes)
    return writer.close()


def weigh(tokens: IntArray, upsample: Upsample) -> FloatArray:
    """Compute the expected copies by source and class; a source that keeps its lengths has equal ones.

    Shapes: `tokens` int64 (n_sources, 2) of short and of long documents; weights float64 (n_sources, 2).
    Example:
        >>> weigh(np.array([[700, 300], [500, 0]]), Upsample(share=0.6)).round(3).tolist()
        [[0.571, 2.0], [1.0, 1.0]]
    """
    wanted = tokens.sum(1, keepdims=True) * [1 - upsample.share, upsample.share]
    # a source without one of the classes, or with enough tokens in long documents, keeps its lengths
    is_changed = (tokens > 0).all(1) & (tokens[:, 1] < wanted[:, 1])
    weights = np.divide(wanted, tokens, out=np.ones(tokens.shape), where=is_changed[:, None])
    scale = 1 if upsample.tokens is None else upsample.tokens / int(tokens.sum())
    return weights * scale


def order_copies(copies: IntArray, generator: np.random.Generator) -> IntArray:
    """Order a shard's copies: copy j = 0 .. m - 1 of a document at (j + r) / m of the whole, r its random number.

    Lengths and sources are thus mixed evenly, and the copies of a document are an m-th of the shard apart: in shards
    of 1,000 documents no two copies are neighbours.

    Shapes: `copies` int64 (documents,); the order int64 (sum of copies,), indices of documents.
    """
    documents = np.repeat(np.arange(len(copies)), copies)
    # copies of a document are neighbours in `documents`: j is the distance from the first of them
    j = np.arange(len(documents)) - np.repeat(np.cumsum(copies) - copies, copies)
    positions = (j + generator.random(len(copies))[documents]) / copies[documents]
    return documents[np.argsort(positions, kind="stable")]
