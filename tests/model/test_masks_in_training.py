"""A training step under every mask and skip, against each window in its trained order under a dense mask in float64."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
import torch

from lab.data.batch import to_batch
from lab.data.segments import index_segments
from lab.masks import Anchor, Arrangement, Document, WindowMask, interleave_chunks
from lab.model.config import DecoderConfig
from lab.skip import SKIP_METHODS, skip_positions
from lab.train.loop import compute_loss
from tests.data.stores import make_store, stream_over
from tests.data.windows import BOS, FIRST, IGNORE, Row, cut, documents_of, located, row_of, without_bos
from tests.model.by_definition import enlarge
from tests.model.test_layers import logits
from tests.modules import training_of

LOSS_TOL = 1e-11  # relative, float64 sums of some thousand terms
GRAD_TOL = 1e-9  # absolute, beside gradients of order one
WINDOW, WINDOWS, SEED, TARGET_LEN = 18, 3, 4, 60
PACK = WINDOW * WINDOWS + 14  # the last 14 are padding, which a window fits that is counted without its anchor
LENGTHS = [5, 9, 1, 12, 3, 7, 2, 8, 4, 11, 6, 1, 10, 6, 9]
VOCAB = FIRST + sum(LENGTHS)
CFG = DecoderConfig(16, 2, 4, 2, 24, VOCAB, tie_embeddings=False, theta=100.0)
SPEEDS = [100.0 ** (-2 * j / CFG.head_dim) for j in range(CFG.head_dim // 2)]


@dataclass(frozen=True, kw_only=True)
class Alternate(WindowMask):
    method: Literal["alternate"] = "alternate"
    ids: str = "running"

    def group(self, documents):
        return documents % 2


MASKS = {
    "causal": Arrangement(),
    "reset": Arrangement(mask=Document()),
    "running": Arrangement(mask=Document(ids="running")),
    "anchor": Arrangement(mask=Anchor(), anchor=BOS, bos=BOS),
    "anchor_of_another_token": Arrangement(mask=Anchor(), anchor=2),
}
CASES = {"alternate": Arrangement(mask=Alternate()), **MASKS}  # running ids show documents as they stand in the row
for each in ("reset", "running", "anchor", "anchor_of_another_token"):
    CASES[f"{each}_chunks"] = replace(MASKS[each], mask=replace(MASKS[each].mask, chunks=3))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same documents without and with BOS, and a store of each."""
    out = {}
    for bos in (False, True):
        documents = documents_of(LENGTHS, bos)
        out[bos] = documents, make_store(tmp_path_factory.mktemp("store"), [documents[:7], documents[7:]])
    return out


def pack_of(store, segments, **settings):
    return next(stream_over(store, segments, pack_tokens=PACK, **{"seed": SEED, "look_ahead": 8, **settings}))


def arranged(stores, arrangement):
    """Give a pack and the rows of its windows, which are the first samples in order, all being of one length."""
    documents, store = stores[arrangement.bos is not None]
    segments = index_segments(store, "concatenated", WINDOW - int(arrangement.mask.is_anchored))
    rows = []
    for sample in range(WINDOWS):
        segment = located(segments, sample, SEED)
        window = cut(documents, segment.start, segment.length)
        window = without_bos(window) if arrangement.bos is not None else window
        order = None
        if arrangement.mask.chunks:
            generator = np.random.default_rng([SEED, sample])
            order = interleave_chunks(np.array(window.documents), arrangement.mask.chunks, generator).tolist()
        reset = arrangement.mask == Document(chunks=arrangement.mask.chunks)
        rows.append(row_of(window, arrangement.mask.method, reset=reset, order=order, anchor=arrangement.anchor))
    return pack_of(store, segments, arrangement=arrangement), rows


def skipped(stores, method):
    """Give a pack of natural segments with skips, and a row for each segment."""
    documents, store = stores[False]
    segments = index_segments(store, "natural", WINDOW)
    ends = np.arange(10_000) % 3 == 0 if method == "longrecipe" else None
    skip = SKIP_METHODS[method](target_len=TARGET_LEN)
    pack = pack_of(store, segments, skip=skip, sentence_ends=ends)
    sample_of = {located(segments, s, SEED).start: s for s in range(segments.n)}
    rows, at = [], 0
    for length in pack.lengths:
        start = int(pack.tokens[at]) - FIRST
        window = cut(documents, start, length)
        sentences = None
        if method == "longrecipe":  # a token whose number is a multiple of 3 ends a sentence
            closing = np.append(np.asarray(window.tokens[:-1]) % 3 == 0, True)
            sentences = np.diff(np.flatnonzero(closing), prepend=-1)
        drawn = {"sentence_lengths": sentences, "generator": np.random.default_rng([SEED, sample_of[start]])}
        ids = skip_positions(method, len(window.tokens), target_len=TARGET_LEN, **drawn)
        rows.append(Row(window.tokens, window.targets, ids.tolist(), window.documents, "causal"))
        at += length
    return pack, rows


def training():
    state = training_of(CFG, seed=0, steps=1, batch_tokens=PACK, micro_batch_tokens=PACK, double=True)
    enlarge(state.decoder, seed=1)
    return state


def dense_loss(decoder, row):
    """Run the decoder of arXiv:2410.18745 A.2 over one row, in its order, by its equations, and add its losses up."""
    rel = lambda m, n: row.ids[m] - row.ids[n]  # noqa: E731
    attended = {"speeds": SPEEDS, "sees": row.sees, "rel": rel, "head_dim": CFG.head_dim}
    rows = logits(decoder, torch.tensor([row.tokens]), [attended] * CFG.n_layers)
    losses = [torch.logsumexp(z, 0) - z[y] for z, y in zip(rows, row.targets, strict=True) if y != IGNORE]
    return torch.stack(losses).sum() if losses else rows.sum() * 0


def assert_step_is_dense(state, pack, rows, gradients):
    got = compute_loss(state, to_batch(pack), stop=False) * PACK
    expected = sum(dense_loss(state.decoder, row) for row in rows)
    assert math.isclose(got.item(), expected.item(), rel_tol=LOSS_TOL)
    assert int(state.sums.views["targets"]) == sum(y != IGNORE for row in rows for y in row.targets)
    assert int(state.sums.views["tokens"]) == sum(len(row.tokens) for row in rows)
    if gradients:
        parameters = list(state.decoder.parameters())
        for x, y in zip(torch.autograd.grad(got, parameters), torch.autograd.grad(expected, parameters), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=GRAD_TOL)


@pytest.mark.parametrize("name", CASES)
def test_a_step_under_every_mask_is_the_dense_one(stores, name):
    pack, rows = arranged(stores, CASES[name])
    assert len(pack.lengths) >= WINDOWS
    assert sum(pack.lengths) < PACK
    assert_step_is_dense(training(), pack, rows, gradients=name.endswith("_chunks") and "another" not in name)


@pytest.mark.parametrize("method", ["pose", "rpes", "longrecipe"])
def test_a_step_with_every_skip_is_the_dense_one(stores, method):
    pack, rows = skipped(stores, method)
    assert len(pack.lengths) > 3
    assert pack.position_ids is not None
    assert_step_is_dense(training(), pack, rows, gradients=method == "rpes")
