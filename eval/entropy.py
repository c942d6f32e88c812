"""Measure attention entropy by layer and by the number of visible tokens.

    probe-lab entropy MODEL [--option=value ...] [-o FOLDER]

The entropy of a query's attention weights p is

    entropy = -sum_j p_j ln p_j,   in nats, between 0 (one key has it all) and ln n (uniform over n visible keys)

A query at 0-based position m sees n = m + 1 tokens. The mean over heads and texts is compared with ln n
(arXiv:2401.07004, section 3.1, Eq. 4, which leaves out the minus sign, and Figure 1):

    probe-lab entropy runs/cpu_demo
    probe-lab entropy runs/cpu_demo --lengths=192,384,768 --texts=40
    probe-lab entropy runs/cpu_demo --lengths=64,128,256 -o entropy
    probe-lab entropy models/Llama-2-7B-Chat --text=pile_arxiv.jsonl --texts=128 --lengths=1024,2048,4096

The last has the paper's model, documents, their number and length. Its released code averages the weights of the first
head over documents before it takes their entropy. The model computes in float32, with its own position methods or with
others, whose theta and logit factor take effect:

    probe-lab entropy runs/cpu_demo --frequency=entropy_abf:train_len=192

Prints a table, and writes a line for each layer and number of visible tokens to the file that the last line names.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from eval.engine import command, subject, texts
from eval.engine.text import pivot, to_text
from lab.core import schema
from lab.core.command import Bar, start
from lab.core.types import Row
from lab.model.attention.inspection import BLOCK_LOGITS, LayerLogits, layer_inputs
from lab.model.huggingface.foreign import AnyDecoder


class EntropyOptions(command.TextOptions):
    """Options of this command."""

    lengths: tuple[schema.Length, ...] | None = None
    """Numbers of visible tokens in the results, with commas between them, the largest the length of the texts;
    default: powers of two up to two training windows, 8192 at most."""


class Entropy(texts.OnTexts):
    """Attention entropy by layer and number of visible tokens."""

    kind = "entropy"
    options: EntropyOptions

    def prepare(self) -> None:
        """Choose the length of the texts and the numbers of visible tokens."""
        # Of two training windows, so that both sides of the window are covered.
        usual = self.subject.cap_length(min(2 * self.subject.model.train_len, 8192))
        lengths = self.options.lengths or (*subject.doublings(2, usual), usual)
        self.visible = sorted(set(lengths))
        self.texts = self.sample_texts(self.visible[-1])

    def rows(self) -> Iterator[Row]:
        """Make a result for each layer and number of visible tokens; `std` is over texts, None of a single one."""
        decoder = self.subject.model.decoder
        parts = [attention_entropy(decoder, text[None]) for text in Bar(self.texts, desc="entropy", unit="text")]
        curves = torch.cat(parts).cpu().numpy()
        for number, count in product(range(curves.shape[1]), self.visible):
            # The query at 0-based position m sees m + 1 tokens.
            values = curves[:, number, count - 1]
            yield {
                **self.origin,
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
        table = pivot(rows, "layer", "visible", "entropy").rename("layer {}".format).rename(columns="{:,}".format)
        table.loc["uniform, ln n"] = np.log(self.visible)
        return to_text(table.rename_axis("visible tokens"), ".3f")


@torch.no_grad()
def attention_entropy(decoder: AnyDecoder, tokens: Tensor, *, most: int = BLOCK_LOGITS) -> Tensor:
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
    # entr(0) is 0: hidden keys, whose logits are -inf, add nothing. The clamp removes -0.0.
    terms: Tensor = torch.special.entr(logits.softmax(-1))
    return terms.sum(-1, dtype=torch.float64).clamp(min=0.0)


main = Entropy.main


if __name__ == "__main__":
    start(main)
