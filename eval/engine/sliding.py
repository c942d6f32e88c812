"""The loss of texts read through a sliding window, from which perplexity by context length follows.

A text of n tokens x_0 .. x_(n-1) is read in windows of c tokens (the context) that begin at tokens 0, s, 2s, .. (s is
the stride, s <= c), up to the first that reaches the text's end, where it is cut. Every window is a forward pass of its
own, which scores the tokens that no window before it has scored. The first window scores all but x_0, which nothing
predicts. Every other scores its last s tokens, and the last window what is left, s at most. With c = 5, s = 2, n = 10,
. seen, # scored:

    tokens    0 1 2 3 4 5 6 7 8 9
              . # # # #
                  . . . # #
                      . . . # #
                          . . . #

So each token but x_0 is scored once. All tokens before it are in sight while these are fewer than c, later c - s to c -
1 of them. With s = c no window sees the token before its first one, which is then not scored. In a text of at most c
tokens one window gives the plain loss. Over texts d,

    loss = sum_d nll_d / sum_d t_d   (nats per token),    perplexity = exp(loss)

where nll_d adds up -ln p of the t_d scored tokens of text d, in float64. The 95% interval is over texts, which are
sampled independently. The loss is a ratio of two sums, so that with m texts and the linearised variance of a ratio

    se^2 = m / (m - 1) * sum_d (nll_d - loss t_d)^2 / (sum_d t_d)^2,    loss +- t_(m-1, 0.975) se,    then exp

which is the usual t interval of a mean where all texts are equally long; one text has none.

Models that need a token at the beginning of every text, as Gemma, may have it in every window. It takes the place of
the first token, which is not scored, so that windows keep their length and their scored tokens.

Whole windows score every token but their first, each in all windows that contain it. With c = 5, s = 2, n = 12:

    tokens    0 1 2 3 4 5 6 7 8 9 10 11
              . # # # #
                  . # # # #
                      . # # #  #             and no window that begins at n - c or after, nor the last one before

Source: arXiv:2402.17463, section 4.1 (sliding window 256 on PG19, after Press et al. 2021); whole windows are those of
its released script, which reads all books as one text.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit  # scipy.stats takes half a second more to import
from torch import Tensor

from lab.core.types import CONFIDENCE, IGNORE, FloatArray, IntArray

Score = Callable[[Tensor, Tensor], Tensor]  # int64 (B, T) tokens and targets -> nats (B, T), 0 at IGNORE


class Window(NamedTuple):
    """Tokens `begin` to `end` - 1 of a text, of which those from `first` on are scored."""

    begin: int
    end: int
    first: int


def windows(n_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Cut a text of two tokens or more into windows.

    Example:
        >>> [tuple(window) for window in windows(10, 5, 2)]
        [(0, 5, 1), (2, 7, 5), (4, 9, 7), (6, 10, 9)]
        >>> [tuple(window) for window in windows(5, 5, 2)], [tuple(window) for window in windows(5, 2, 2)]
        ([(0, 5, 1)], [(0, 2, 1), (2, 4, 3)])
    """
    scored = 1
    for begin in range(0, n_tokens, stride):
        end = min(begin + context, n_tokens)
        first = max(scored, begin + 1)
        if first < end:
            yield Window(begin, end, first)
        if end == n_tokens:
            return
        scored = end


def whole_windows(n_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """List the whole windows of a text; the last one is omitted, as in the released script.

    Example:
        >>> [tuple(window) for window in whole_windows(12, 5, 2)]
        [(0, 5, 1), (2, 7, 3), (4, 9, 5)]
    """
    for begin in range(0, n_tokens - context - stride, stride):
        yield Window(begin, begin + context, begin + 1)


class TextLosses(NamedTuple):
    """The loss of every text in nats, float64 (texts,), and its scored tokens, int64 (texts,)."""

    nll: FloatArray
    tokens: IntArray

    @property
    def loss(self) -> float:
        """Mean over all scored tokens, in nats."""
        return float(self.nll.sum() / self.tokens.sum())

    @property
    def perplexity(self) -> float:
        return to_perplexity(self.loss)

    @property
    def limits(self) -> tuple[float, float] | None:
        """95% interval of the perplexity over texts; None of a single one."""
        count = len(self.nll)
        if count < 2:
            return None
        residuals = self.nll - self.loss * self.tokens
        error = math.sqrt(count / (count - 1) * float((residuals**2).sum())) / float(self.tokens.sum())
        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error
        return to_perplexity(self.loss - half), to_perplexity(self.loss + half)


def to_perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # 10^304, about the largest float


def text_losses(
    score: Score,
    texts: Sequence[IntArray],
    cut: Callable[[int], Iterator[Window]],
    *,
    rows: int,
    bos: int | None = None,
    done: Callable[[int], object] = lambda windows: None,
) -> TextLosses:
    """Score every text in batches of at most `rows` windows of one length; call `done` with the size of each batch.

    The token `bos`, if it is given, takes the place of the first token of windows that do not begin a text.
    """
    # Windows of one length share a batch, whatever their text: padding would cost time and change no loss.
    waiting: dict[int, list[tuple[int, Window]]] = {}  # by length
    for number, text in enumerate(texts):
        for window in cut(len(text)):
            waiting.setdefault(window.end - window.begin, []).append((number, window))
    losses = TextLosses(np.zeros(len(texts)), np.zeros(len(texts), dtype=np.int64))
    for alike in waiting.values():
        for start in range(0, len(alike), rows):
            batch = alike[start : start + rows]
            tokens = np.stack([texts[number][begin:end] for number, (begin, end, _) in batch])
            targets = np.full(tokens.shape, IGNORE)
            if bos is not None:
                tokens[[window.begin > 0 for _, window in batch], 0] = bos
            for row, (number, (begin, end, first)) in zip(targets, batch, strict=True):
                row[first - 1 - begin : end - 1 - begin] = texts[number][first:end]  # each predicts the next token
            nats = score(torch.from_numpy(tokens), torch.from_numpy(targets))
            for (number, (_, end, first)), loss in zip(batch, nats.double().sum(1).tolist(), strict=True):
                losses.nll[number] += loss
                losses.tokens[number] += end - first
            done(len(batch))
    return losses
