"""Measure attention entropy by layer and by the number of visible tokens.

    python -m eval.entropy MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. The entropy of a query's attention weights p is

    entropy = -sum_j p_j ln p_j,   in nats, between 0 (one key has it all) and ln n (uniform over n visible keys)

A query at 0-based position m sees n = m + 1 tokens. The mean over heads and texts is compared with ln n
(arXiv:2401.07004, section 3.1, Eq. 4, which leaves out the minus sign, and Figure 1):

    python -m eval.entropy runs/cpu_demo
    python -m eval.entropy runs/cpu_demo --tokens=768 --texts=40 --plot
    python -m eval.entropy runs/cpu_demo --lengths=64,128,256 --plot -o entropy
    python -m eval.entropy models/Llama-2-7B-Chat --text=pile_arxiv.jsonl --texts=128 --tokens=4096

The last has the paper's model, documents, their number and length. Its released code averages the weights of the first
head over documents before it takes their entropy. The model computes in float32, with its own position methods or with
others, whose theta and logit factor take effect:

    python -m eval.entropy runs/cpu_demo --frequency=entropy_abf:train_len=192

Prints a table, and writes a line for each layer and number of visible tokens to the file that the last line names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from eval.engine.command import Form, TextOptions
from eval.engine.rows import Row, to_text
from eval.engine.run import OnTexts, run_measure
from eval.engine.subject import doublings
from lab.command import Bar, start
from lab.draw import GREY, Rule, draw, layer
from lab.model.attention.inspection import BLOCK_LOGITS, LayerLogits, layer_inputs
from lab.model.decoder import Decoder
from lab.schema import Length, Positive

WINDOWS = 2  # training windows that a text is long, so that both sides of the window are seen
MOST_TOKENS = 8192  # of a text whose length is not given
SMOOTH = 0.04  # share of n to either side that a point of a line averages over; single queries of few texts are noise
DRAWN = 200  # points of a line, at most
Y_TITLE = "attention entropy (nats)"
NAMED = 10  # layers at most that a legend names; more have a colour bar


@dataclass(frozen=True, kw_only=True)
class EntropyOptions(TextOptions):
    """Options of this command."""

    tokens: Positive | None = None
    """Tokens of each text; left out, the largest of --lengths, or else two training windows, 8192 at most."""
    lengths: tuple[Length, ...] | None = None
    """Numbers of visible tokens in the results, with commas between them; left out, powers of two up to --tokens."""

    def rules(self) -> list[str]:
        """Refuse more visible tokens than a text has."""
        faults = list(super().rules())
        if self.lengths is not None and self.tokens is not None and max(self.lengths) > self.tokens:
            faults.append(f"lengths={max(self.lengths)}: must be <= tokens={self.tokens}; raise --tokens")
        return faults

    def text_tokens(self, train_len: int | None) -> int:
        """Return the length of the texts."""
        return self.tokens or max(self.lengths or (min(WINDOWS * (train_len or MOST_TOKENS), MOST_TOKENS),))


class Entropy(OnTexts):
    """Attention entropy by layer and number of visible tokens."""

    kind = "entropy"
    options: EntropyOptions
    form = Form(options=EntropyOptions)

    def prepare(self) -> None:
        """Choose the length of the texts and the numbers of visible tokens."""
        self.longest = n_tokens = self.options.text_tokens(self.subject.model.train_len)
        self.visible = sorted({*(self.options.lengths or (*doublings(2, n_tokens), n_tokens))})
        self.texts = self.draw_texts(n_tokens)

    def records(self) -> Iterator[Row]:
        """Make a result for each layer and number of visible tokens; `std` is over texts, None of a single one."""
        decoder = self.subject.model.decoder
        texts = Bar(self.texts, desc="entropy", unit="text")
        curves = torch.cat([attention_entropy(decoder, text[None]) for text in texts]).cpu().numpy()
        self.mean = curves.mean(0)
        for number in range(curves.shape[1]):
            for count in self.visible:
                values = curves[:, number, count - 1]
                yield {
                    "metric": "attention_entropy",
                    "layer": number,
                    "visible": count,
                    "entropy": float(values.mean()),
                    "std": float(values.std(ddof=1)) if len(values) > 1 else None,
                    "uniform": float(np.log(count)),
                    "texts": len(curves),
                    "n": len(curves) * decoder.cfg.n_heads,
                }

    def text(self, rows: Sequence[Row]) -> str:
        """Write a row for each layer, a column for each number of visible tokens."""
        columns = pd.Index([f"{count:,}" for count in self.visible])
        layers = pd.Index([f"layer {number}" for number in range(len(self.mean))], name="visible tokens")
        frame = pd.DataFrame(self.mean[:, np.array(self.visible) - 1], layers, columns)
        frame.loc["uniform, ln n"] = np.log(self.visible)
        return to_text(frame, ".3f")

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw a picture like Figure 1 of arXiv:2401.07004: a line for each layer, against ln n."""
        n_tokens, window = self.mean.shape[1], self.subject.model.train_len
        curves = [smoothed(curve) for curve in self.mean]
        points = np.unique(np.geomspace(1, len(curves[0]), DRAWN).round().astype(int))
        few = len(curves) <= NAMED
        lines = [
            {"visible": count, "entropy": curve[count - 1], "layer": f"layer {number}" if few else number}
            for number, curve in enumerate(curves)
            for count in points
        ]
        uniform = [{"visible": count, "entropy": np.log(count)} for count in (1, n_tokens)]
        rules = [Rule("x", window, f"training window {window:,}")] if window is not None and window < n_tokens else []
        x_title = f"visible tokens n (query position + 1); each point is the mean over n ± {SMOOTH:.0%}"
        line = partial(draw, x="visible", y="entropy", log_x=True, marks=False, x_title=x_title, y_title=Y_TITLE)
        return layer(
            line(uniform, color=GREY),
            line(lines, series="layer", rules=rules),
        ).properties(title=[self.title, "grey: uniform attention, ln n"])


@torch.no_grad()
def attention_entropy(decoder: Decoder, tokens: Tensor, *, most: int = BLOCK_LOGITS) -> Tensor:
    """Compute the mean over heads of every query's entropy; at most `most` logits are held at one time.

    Shapes: tokens int64 (B, T); returns float64 (B, n_layers, T), column m for the queries that see m + 1 tokens.
    """
    layers = []
    for inputs in layer_inputs(decoder, tokens):
        logits = LayerLogits(inputs)
        blocks = [entropy(logits.block(part)).mean(1) for part in logits.blocks(most)]
        layers.append(torch.cat(blocks, dim=-1))
    return torch.stack(layers, dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of the softmax over the last axis, added up in float64.

    Example:
        >>> [round(x, 4) for x in entropy(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]])).tolist()]
        [0.6931, 0.0]
    """
    terms: Tensor = torch.special.entr(logits.softmax(-1))
    return terms.sum(-1, dtype=torch.float64).clamp(min=0.0)


def smoothed(curve: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Average each point over those up to SMOOTH of it to either side, as far as there are such points.

    Example:
        >>> smoothed(np.arange(40.0))[[0, 23, 24, 37]].tolist(), len(smoothed(np.arange(40.0)))
        ([0.0, 23.0, 24.0, 37.0], 39)
    """
    visible = np.arange(1, len(curve) + 1)
    reach = (visible * SMOOTH).astype(int)
    visible = visible[visible + reach <= len(curve)]
    reach = reach[: len(visible)]
    sums = np.concatenate([[0.0], np.cumsum(curve)])
    mean: npt.NDArray[np.float64] = (sums[visible + reach] - sums[visible - 1 - reach]) / (2 * reach + 1)
    return mean


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_measure(Entropy, arguments)


if __name__ == "__main__":
    start(main)
