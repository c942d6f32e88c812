"""Impactful tokens: those whose logits a brief training at the target length changes most.

    change(w, i) = |S_tuned(t | x < t) - S_base(t | x < t)|      t: target i of window w, S: the head's logit of it

Both models score the same windows. Among the targets at one position i of all windows, the `top` share with the largest
changes is marked. That is the nearest whole number of them, and at least one. Equal changes count in the order of the
windows.

    change    position 0  1  2        marked at 40% of 3 windows, one at each position
    window 0           1  4  2        .  x  .
    window 1           3  4  1        x  .  .
    window 2           2  0  5        .  .  x

A label (a token or a part of speech) is impactful by its rate, marked / occurrences. Labels are taken
from the highest rate on until they hold the share `coverage` of all that is marked. Labels that occur rarely, whose
rate is unreliable, are skipped.

Source: arXiv:2409.00509, section 4.1 and Figure 4. The paper takes the share among the marked alone, which a frequent
class leads without changing much. It does not state how many types it takes: rate and coverage are ours. Its Eq. 3 sums
the change over samples; the text below it, followed here, marks the top 20% at each position.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from lab.core.types import FloatArray, IntArray

BoolArray = np.typing.NDArray[np.bool_]


def mark(changes: FloatArray, scored: BoolArray, top: float) -> BoolArray:
    """Mark the largest changes at each position; what is not scored is neither marked nor counted.

    Shapes: (windows, length), both -> bool (windows, length).
    """
    n_scored = scored.sum(0)
    # floor(x + 0.5) rounds halves up, while round() takes the even neighbour.
    n_marked = np.minimum(np.maximum(np.floor(top * n_scored + 0.5), 1), n_scored)
    # Targets that are not scored come last. The first of equal changes ranks before the others.
    ranks = pd.DataFrame(np.where(scored, -changes, np.inf)).rank(method="first").to_numpy()
    return np.asarray(ranks <= n_marked)


def tally(labels: IntArray, changes: FloatArray, marked: BoolArray, names: Sequence[str]) -> pd.DataFrame:
    """Count targets by label in falling order of the rate; among equal rates the label with more marked comes first.

    Shapes: labels, numbers of `names`, changes and marked (n_targets,).
    """
    occurrences = np.bincount(labels, minlength=len(names))
    table = pd.DataFrame({"label": names, "occurrences": occurrences})
    table["marked"] = np.bincount(labels[marked], minlength=len(names))
    table["share_of_marked"] = table["marked"] / marked.sum()
    table["share_of_all"] = occurrences / len(labels)
    table["rate"] = table["marked"] / np.maximum(occurrences, 1)
    table["mean_change"] = np.bincount(labels, changes, len(names)) / np.maximum(occurrences, 1)
    return table[occurrences > 0].sort_values(["rate", "marked"], ascending=False, kind="stable")


def choose_labels(table: pd.DataFrame, coverage: float, min_count: int) -> list[int]:
    """Take labels in falling order of their rate until they hold a share of all that is marked.

    Labels without a mark, or with fewer than `min_count` occurrences, are not taken. So all that can be taken may hold
    less.
    """
    can = table[(table["marked"] > 0) & (table["occurrences"] >= min_count)]
    # A product of decimals may fall just above a whole number.
    wanted = coverage * table["marked"].sum() * (1 - 1e-12)
    # searchsorted finds the label that completes the share; + 1 includes it.
    return list(can.index[: int(np.searchsorted(can["marked"].cumsum(), wanted)) + 1])


def token_texts(tokenizer: Tokenizer) -> list[str | None]:
    """Return every token's text as it appears inside a text, a leading space included; None for a special token.

    Shapes: (vocab_size,), added tokens included.
    """
    n_ids = max(tokenizer.get_vocab().values()) + 1
    # With text before the token, its leading space shows.
    before = tokenizer.encode("a", add_special_tokens=False).ids
    start = len(tokenizer.decode(before))
    texts = tokenizer.decode_batch([[*before, token] for token in range(n_ids)], skip_special_tokens=True)
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    return [None if token in special else text[start:] for token, text in enumerate(texts)]


def label_tokens(texts: Sequence[str | None], tags: Mapping[int, str] | None) -> tuple[IntArray, list[str]]:
    """Label every token by its own text, or by its part of speech if there are `tags`; -1 where it has no label.

    Shapes: int64 (vocab_size,), numbers of the names.
    Example:
        >>> label_tokens(["a", None, "b", "c"], {3: "NUM", 0: "ADP"})
        (array([ 0, -1, -1,  1]), ['ADP', 'NUM'])
    """
    if tags is None:
        return np.arange(len(texts)), [repr(text or "") for text in texts]
    labels = pd.Categorical([tags.get(token) for token in range(len(texts))])
    return labels.codes.astype(np.int64), list(labels.categories)
