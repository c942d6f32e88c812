"""Every distance method as bands: regions that partition the causal pairs, maps that give rel_pos, tiles that cover."""

import itertools

import numpy as np
import pytest
import torch

from lab.positions import distance
from lab.positions.regions import Near
from lab.testing import check_distance_method

WIDTHS = [0, 1, 2, 3, 7, 39, 40, 41]  # none, least, inside, at and beyond the lengths tried
CHUNKS = {  # of Dual Chunk Attention: for a pretraining window c, the chunk s and the local window w
    1: [(1, 0)],
    10: [(6, 4), (6, 0), (6, 1), (10, 0), (1, 9), (2, 8)],
    39: [(13, 5), (17, 22)],
    60: [(39, 21), (40, 20), (41, 0), (60, 0)],
}
LENGTHS = (*range(1, 9), 10, 13, 14, 20, 27, 39, 40)  # about the widths and chunks, where the number of tiles changes
STARTS = [0, 1, 13]  # of the keys: a whole text, and texts that begin at a running position


def cases():
    """List (method, parameters) with ids."""
    listed = [("plain", {})]
    for shift in WIDTHS[1:]:
        listed += [("string", {"shift": shift, "window": w}) for w in sorted({0, shift // 2, shift})]
    for c, chunks in CHUNKS.items():
        listed += [("dca", {"train_len": c, "chunk": s, "window": w}) for s, w in chunks]
    for parts in ("intra_inter", "intra"):
        listed += [
            ("dca", {"train_len": c, "chunk": s, "parts": parts}) for c, s in ((1, 1), (10, 6), (39, 13), (60, 41))
        ]
    for window in WIDTHS:
        listed += [("self_extend", {"group": g, "window": window}) for g in (3, 50)]
        listed.append(("rerope", {"window": window}))
        listed.append(("leaky_rerope", {"window": window, "leak": 2.5}))
    listed += [("self_extend", {"group": 1, "window": 7}), ("leaky_rerope", {"window": 7, "leak": 1.0})]
    return [pytest.param(m, p, id="_".join([m, *(f"{k}{v}" for k, v in p.items())])) for m, p in listed]


every = pytest.mark.parametrize(("method", "parameters"), cases())


def spans():
    """Yield queries and keys that end together: all, all but the first, the second half, the last three, the last."""
    for start, n in itertools.product(STARTS, LENGTHS):
        keys = range(start, start + n)
        for size in {n, max(1, n - 1), max(1, n // 2), min(n, 3), 1}:
            yield keys[n - size :], keys


def pairs(queries, keys):
    """Return query and key positions that broadcast to a matrix, and which entries are causal."""
    m, n = torch.tensor([*queries])[:, None], torch.tensor([*keys])[None, :]
    return m, n, n <= m


def times_covered(tiles, queries, keys, width=None):
    """Count for each entry of the matrix the tiles that cover it; near ones slide a window of `width` keys."""
    count = np.zeros((len(queries), len(keys)), dtype=int)
    for tile in tiles:
        assert queries.start <= tile.q.start < tile.q.stop <= queries.stop, tile
        assert keys.start <= tile.k.start < tile.k.stop <= keys.stop, tile
        assert tile.shape in ("full", "near") or len(tile.q) == len(tile.k), tile
        square, more = np.ones((len(tile.q), len(tile.k)), dtype=int), len(tile.k) - len(tile.q)
        if tile.shape == "near":
            drawn = np.tril(square, more) - np.tril(square, more - width)
        else:
            drawn = {"full": square, "causal": np.tril(square), "upper": np.triu(square)}[tile.shape]
        rows = slice(tile.q.start - queries.start, tile.q.stop - queries.start)
        columns = slice(tile.k.start - keys.start, tile.k.stop - keys.start)
        count[rows, columns] += drawn
    return count


@every
def test_every_causal_pair_lies_in_one_band_whose_maps_give_its_relative_position(method, parameters):
    built = distance(method, **parameters)
    assert len({band.k_map for band in built.bands}) == (1 if method in ("plain", "string", "dca") else 2), "shared"
    if parameters.get("parts") == "intra":  # the one method that hides pairs
        m, n, causal = pairs(range(90), range(90))
        same = m // parameters["chunk"] == n // parameters["chunk"]
        assert torch.equal(causal & built.visible_pairs(m, n), causal & same)
    check_distance_method(type(built), **parameters)


@every
def test_tiles_cover_each_pair_of_the_region_once_and_no_other(method, parameters):
    bands = distance(method, **parameters).bands
    for queries, keys in spans():
        m, n, causal = pairs(queries, keys)
        for band in bands:
            tiles = list(band.region.tiles(queries, keys))
            assert len(queries) > 1 or len(tiles) <= 1, (band.region, queries, keys)
            expected = (causal & band.region.contains(m, n)).int().numpy()
            assert (times_covered(tiles, queries, keys) == expected).all(), (band.region, queries, keys)
            if isinstance(band.region, Near):
                covered = times_covered(band.region.window(queries, keys), queries, keys, band.region.width)
                assert (covered == expected).all(), (band.region, queries, keys)
