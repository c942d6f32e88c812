"""Training windows by definition, written apart from the lab: plain lists, one token and one pair at a time."""

import itertools
from dataclasses import dataclass

IGNORE = -100  # torch's own, see torch.nn.CrossEntropyLoss
BOS, FIRST = 1, 10  # the token that begins documents, and the lowest of all others


def mix(x):
    """The output of SplitMix64 at a state, in plain numbers."""
    x = (x + int("9E3779B97F4A7C15", 16)) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def sample_segment(sample, n, seed):
    """The segment of one global sample: every epoch of n samples is a shuffle of its own."""
    epoch, place = divmod(sample, n)
    return shuffled(place, n, key=mix(seed) ^ mix(mix(epoch)))


def located(segments, sample, seed):
    """Where the segment of one global sample lies."""
    return segments.locate(sample_segment(sample, segments.n, seed))


def shuffled(index, n, key):
    """The image of an index under a keyed permutation of 0 .. n - 1: a Feistel network of four rounds, repeated."""
    half = max(1, -(-(n - 1).bit_length() // 2))
    while True:
        left, right = index >> half, index % 2**half
        for turn in range(4):
            left, right = right, left ^ mix(right ^ mix(4 * key + turn)) % 2**half
        index = left * 2**half + right
        if index < n:
            return index


@dataclass(frozen=True)
class Window:
    """A stretch of text: its tokens, what is to be predicted at each, and the number of each one's document."""

    tokens: list
    targets: list
    documents: list


@dataclass(frozen=True)
class Row:
    """What attention must see of a window, in the order of the trained row."""

    tokens: list
    targets: list
    ids: list
    documents: list  # None for the anchor
    mask: str

    def sees(self, m, n):
        """Tell whether place m of the row sees place n."""
        if n > m:
            return False
        if self.mask == "alternate":
            return self.documents[m] % 2 == self.documents[n] % 2
        return self.mask == "causal" or self.documents[n] in (None, self.documents[m])


def documents_of(lengths, bos=False):
    """Make documents in which every token stands once: FIRST, FIRST + 1, ...; with `bos` each begins with BOS."""
    out, at = [], FIRST
    for length in lengths:
        document = list(range(at, at + length))
        out.append([BOS, *document[1:]] if bos else document)
        at += length
    return out


def cut(documents, start, length):
    """Cut a window out of documents that lie end to end; a target is the next token of the same document."""
    places = [(number, i) for number, document in enumerate(documents) for i in range(len(document))]
    places = places[start : start + length]
    return Window(
        [documents[number][i] for number, i in places],
        [documents[number][i + 1] if i + 1 < len(documents[number]) else IGNORE for number, i in places],
        [number - places[0][0] for number, _ in places],
    )


def without_bos(window):
    """Leave out the BOS that begins a document."""
    begins = [place == 0 or window.documents[place - 1] != d for place, d in enumerate(window.documents)]
    kept = [place for place, token in enumerate(window.tokens) if token != BOS or not begins[place]]
    return Window(*([column[place] for place in kept] for column in (window.tokens, window.targets, window.documents)))


def row_of(window, mask, *, reset=False, order=None, anchor=None):
    """Lay a window out as a row: its tokens in an order, or as they are, the anchor before them where there is one."""
    entries = range(len(window.tokens)) if order is None else order
    tokens, targets, documents = (
        [column[place] for place in entries] for column in (window.tokens, window.targets, window.documents)
    )
    ids = list(range(len(tokens)))
    if reset:
        ids = [place - documents.index(document) for place, document in enumerate(documents)]
    if mask == "anchor":
        tokens, targets, documents = [anchor, *tokens], [IGNORE, *targets], [None, *documents]
        ids = [0, *(place + 1 for place in ids)]
    return Row(tokens, targets, ids, documents, mask)


def runs_of(pack):
    """List (tokens, targets, ids, anchor) of each run of a pack, ids counted from 0 where the pack holds none."""
    bounds = list(itertools.accumulate(pack.lengths, initial=0))
    anchors = pack.anchors or [-1] * len(pack.lengths)
    out = []
    for (a, b), anchor in zip(itertools.pairwise(bounds), anchors, strict=True):
        ids = range(b - a) if pack.position_ids is None else pack.position_ids[a:b].tolist()
        out.append((pack.tokens[a:b].tolist(), pack.targets[a:b].tolist(), list(ids), anchor))
    return out
