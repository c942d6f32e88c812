"""Group a batch's prompts by common prefixes, which are then read only once."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

LEAST_SHARE = 0.25  # of a prompt that must be shared: reading a shorter prefix separately costs more than it saves


class Group(NamedTuple):
    """Rows `start` to `stop` of sorted prompts, the first `prefix` tokens of which are the same; 0 for none shared."""

    start: int
    stop: int
    prefix: int


def sorted_groups(prompts: np.ndarray) -> tuple[list[int], list[Group]]:
    """Sort prompts so that those with a common prefix are adjacent, and divide them into groups.

    A row joins the group before it as long as the group then saves no fewer tokens. The last token of a prompt is
    never part of its prefix: its logits choose the first new token. Rows that share nothing become one group of
    prefix 0.

    Shapes: prompts integers (B, T) -> B row numbers, and groups of rows in that order, which cover all.
    Example:
        >>> order, groups = sorted_groups(np.array([[7, 8, 1, 1], [1, 1, 1, 1], [7, 8, 2, 2]]))
        >>> order, groups[0], groups[1]
        ([1, 0, 2], Group(start=0, stop=1, prefix=0), Group(start=1, stop=3, prefix=2))
    """
    n_rows, n_tokens = prompts.shape
    order = sorted(range(n_rows), key=lambda row: prompts[row].tobytes())
    common = [n_common(prompts[a], prompts[b]) for a, b in itertools.pairwise(order)]
    groups = [Group(0, 1, n_tokens - 1)]
    for row, shared in enumerate(common, start=1):
        last = groups[-1]
        prefix = min(last.prefix, shared)
        saved, so_far = prefix * (row - last.start), last.prefix * (row - 1 - last.start)
        if prefix >= LEAST_SHARE * n_tokens and saved >= so_far:
            groups[-1] = Group(last.start, row + 1, prefix)
        else:
            groups.append(Group(row, row + 1, n_tokens - 1))
    return order, joined([Group(a, b, prefix if b - a > 1 else 0) for a, b, prefix in groups])


def joined(groups: list[Group]) -> list[Group]:
    """Join adjacent groups that share nothing."""
    out: list[Group] = []
    for group in groups:
        if out and out[-1].prefix == group.prefix == 0:
            out[-1] = Group(out[-1].start, group.stop, 0)
        else:
            out.append(group)
    return out


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """Count the tokens of the common prefix of two prompts, at most all but the last."""
    differ = a[:-1] != b[:-1]
    return int(differ.argmax()) if differ.any() else len(differ)
