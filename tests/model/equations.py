"""Every distance method's equation, written apart from the lab, and layouts of rows to attend under."""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch

from lab.model.attention.attend import attend, attend_layout
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from tests.model.dense import attention_by_distance, rule


def string(i, m, n, s, w):
    return i if i < s else i - s + w


def dca(i, m, n, c, s, w):
    r, back = m % s, m // s - n // s
    q = r if back == 0 else (s + r if r < w else c - 1) if back == 1 else c - 1
    return q - n % s


def self_extend(i, m, n, g, w):
    return i if i < w else m // g - n // g + w - w // g


METHODS = {  # the lab's parameters, and the equation as a function of i = m - n, m and n
    "plain": ({"method": "plain"}, lambda i, m, n: i),
    "string": ({"method": "string", "shift": 5, "window": 2}, lambda i, m, n: string(i, m, n, 5, 2)),
    "string_w0": ({"method": "string", "shift": 7, "window": 0}, lambda i, m, n: string(i, m, n, 7, 0)),
    "string_shift1": ({"method": "string", "shift": 1, "window": 1}, lambda i, m, n: string(i, m, n, 1, 1)),
    "dca": ({"method": "dca", "chunk": 6, "train_len": 10, "window": 4}, lambda i, m, n: dca(i, m, n, 10, 6, 4)),
    "dca_small_window": (
        {"method": "dca", "chunk": 4, "train_len": 9, "window": 2},
        lambda i, m, n: dca(i, m, n, 9, 4, 2),
    ),
    "dca_chunk1": ({"method": "dca", "chunk": 1, "train_len": 1}, lambda i, m, n: dca(i, m, n, 1, 1, 0)),
    "dca_intra_inter": (
        {"method": "dca", "chunk": 4, "train_len": 9, "parts": "intra_inter"},
        lambda i, m, n: dca(i, m, n, 9, 4, 0),
    ),
    "self_extend": ({"method": "self_extend", "group": 3, "window": 4}, lambda i, m, n: self_extend(i, m, n, 3, 4)),
    "self_extend_w0": ({"method": "self_extend", "group": 2, "window": 0}, lambda i, m, n: self_extend(i, m, n, 2, 0)),
    "rerope": ({"method": "rerope", "window": 4}, lambda i, m, n: min(i, 4)),
    "rerope_w0": ({"method": "rerope", "window": 0}, lambda i, m, n: 0),
    "leaky_rerope": (
        {"method": "leaky_rerope", "window": 3, "leak": 2.5},
        lambda i, m, n: i if i < 3 else 3 + (i - 3) / 2.5,
    ),
}
ONCE = {name: case for name, case in METHODS.items() if name == case[0]["method"]}  # each at ordinary parameters


@dataclass(frozen=True)
class Case:
    """Rows of tokens: how many queries and keys, their ids, documents or segments, and what sees what."""

    n_q: int
    n_k: int
    rows: int = 1
    ids: tuple | None = None
    mask: str = "causal"
    docs: tuple | None = None
    lengths: tuple | None = None
    anchors: tuple | None = None
    starts: tuple | None = None

    def k_ids(self):
        """List the ids of every row's keys."""
        if self.ids is not None:
            return [list(row) for row in self.ids]
        if self.lengths is None:
            return [list(range(self.n_k))] * self.rows
        starts = self.starts or (0,) * len(self.lengths)
        ids = [i for n, start in zip(self.lengths, starts, strict=True) for i in range(start, start + n)]
        return [ids + list(range(self.n_k - len(ids)))]

    def sees(self):
        """Make the rule of (row, query index, key index)."""
        if self.lengths is None:
            return rule(self.mask, self.docs and [list(row) for row in self.docs])
        runs = [run for run, length in enumerate(self.lengths) for _ in range(length)]

        def sees(b, m, n):
            if n > m or max(m, n) >= len(runs):
                return False
            return runs[m] == runs[n] or (self.anchors is not None and self.anchors[runs[m]] == n)

        return sees

    def truth(self, q, k, v, speeds, rel, factor=lambda m: 1.0):
        """Attend pair by pair in float64; `factor` is of a query's id."""
        ids = self.k_ids()
        whole = ids[0]
        return attention_by_distance(
            *(q, k, v, speeds),
            lambda b, m, n: rel(ids[b][m] - ids[b][n], ids[b][m], ids[b][n]),
            self.sees(),
            lambda m: factor(whole[m]),
        )

    def attend(self, q, k, v, rotary, method, backend, device="cpu", layer=0):
        """Attend by the lab."""
        if self.lengths is None:
            docs = None if self.docs is None else torch.tensor(self.docs, device=device)
            k_pos = None if self.ids is None else torch.tensor(self.ids, device=device)
            settings = {"frequencies": rotary, "distance": method, "k_pos": k_pos, "doc_ids": docs, "mask": self.mask}
            return attend(q, k, v, **settings, backend=backend, layer=layer)
        segments = Segments.from_lengths(self.lengths, self.n_k, device, self.anchors)
        ids = torch.tensor(self.k_ids()[0], device=device)
        starts = None if self.ids is not None else self.starts or (0,) * len(self.lengths)
        layout = Layout(ids, ids, rotary, method, q.dtype, segments=segments, starts=starts)
        return attend_layout(q, k, v, layout, backend=backend, layer=layer)


GAPPED = ((0, 1, 2, 5, 6, 7, 8, 20, 21, 40), (3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
DOCS = ((0, 0, 0, 0, 1, 1, 1, 1, 1, 1), (0, 1, 1, 2, 2, 2, 2, 2, -1, -1))
RESET = ((0, 1, 2, 3, 0, 1, 2, 3, 4, 5), (0, 0, 1, 0, 1, 2, 3, 4, 0, 1))
RUNS = (1, 7, 1, 12, 1, 5, 3)
PIECES = (9, 1, 14, 2)
CASES = {
    "one_token": Case(1, 1),
    "rows": Case(23, 23, rows=2),
    "decoding": Case(1, 23, rows=2),
    "chunk": Case(6, 23),
    "second_token": Case(1, 2),
    "offset": Case(10, 10, rows=2, ids=(tuple(range(7, 17)),) * 2),
    "gapped": Case(10, 10, rows=2, ids=GAPPED),
    "documents": Case(10, 10, rows=2, mask="document", docs=DOCS),
    "documents_interleaved": Case(7, 7, mask="document", docs=((0, 1, 0, 1, 1, 2, 0),)),
    "documents_reset": Case(10, 10, rows=2, ids=RESET, mask="document", docs=DOCS),
    "documents_gapped": Case(10, 10, rows=2, ids=GAPPED, mask="document", docs=DOCS),
    "documents_decoding": Case(1, 10, rows=2, mask="document", docs=DOCS),
    "anchor": Case(10, 10, rows=2, mask="anchor", docs=DOCS),
    "anchor_decoding": Case(1, 10, rows=2, mask="anchor", docs=DOCS),
    "packed": Case(29, 29, lengths=PIECES),
    "packed_running": Case(29, 29, lengths=PIECES, starts=(0, 9, 10, 24)),
    "packed_alike": Case(13, 13, lengths=(4, 4, 4)),
    "anchored": Case(34, 34, lengths=RUNS, anchors=(-1, 0, 0, 0, -1, 21, 21), starts=(0, 1, 8, 9, 0, 1, 6)),
    "anchored_gapped": Case(
        34,
        34,
        lengths=RUNS,
        anchors=(-1, 0, 0, 0, -1, 21, 21),
        ids=((*range(8), 10, *range(12, 24), 0, 2, 3, 4, 8, 9, 11, 12, 20, *range(4)),),
    ),
}


def log_factor(base):
    """Make the factor max(1, ln(m + 1) / ln(base)) of a query at id m."""
    return lambda m: max(1.0, math.log(m + 1) / math.log(base))


def ends(lengths):
    """Add up lengths from 0."""
    return [0, *accumulate(lengths)]
