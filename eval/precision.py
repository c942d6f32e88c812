"""Measure the effect of bfloat16 on RoPE: how much attention changes when all positions are shifted equally.

    probe-lab precision MODEL [--option=value ...] [-o FOLDER]

In exact arithmetic a shift changes nothing. D adds up the differences of the attention weights, D_logit those of the
logits of the first token (arXiv:2411.13476, Eq. 4, 5 and Figure 1). Both are measured in float32, and with rotated
queries and keys rounded to bfloat16, as flash attention takes them. The weights are the model's own, and random ones of
the same config:

    probe-lab precision runs/cpu_demo
    probe-lab precision runs/cpu_demo --shifts=0,2,100 --lengths=64,128,256,512 -o precision
    probe-lab precision models/Llama-2-7B --text=essays.txt --length=4096 --lengths=64,1024,8192 --whole_model=true

Prints two tables. The file that the last line names has a line for each number.

    D(X, d1, d2) = sum over layers, heads and keys j of n_j sum over queries i of |ATTN_ij(d1) - ATTN_ij(d2)|    (Eq. 4)
    D_logit      = 1/T sum over layers, heads and queries i of |A_i0(d1) - A_i0(d2)|                            (Eq. 5)

ATTN(d) are the attention weights and A(d) the logits before softmax of a text of T tokens at positions d .. d + T - 1.
n_j = 1 / (T - j), keys counted from 0. d2 is the reference. first_token_frac is the share of D that the first key has.

Where bfloat16 rounds:

    fp32        nowhere: weights, activations, rotated queries and keys, logits, softmax are float32
    bf16        queries and keys are rotated in float32 and then rounded to bfloat16; their products are added up in
                float32, as flash attention does; the softmax is float32. All else is as in fp32: the same un-rotated
                queries and keys, of an unshifted float32 forward pass, serve all shifts and both arithmetics
    bf16_model  weights and activations are bfloat16 too, and each shift has its own forward pass, so that layers pass
                differences on; between the layers a GPU's kernels round as in bf16, a CPU attends in float32

Source: arXiv:2411.13476, section 2. It leaves 1 / sqrt(head_dim) out of its notation; A here has it. Its random weights
are torch's kaiming_uniform_, ours what the lab's training starts from, of about the same size. Its curves are of a
whole model in bfloat16 on a GPU, as bf16_model is there; bf16 leaves nothing but RoPE to explain them.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eval.engine import command, subject, texts
from eval.engine.text import pivot, to_text
from lab.core.command import Bar, start
from lab.core.errors import ConfigError
from lab.core.schema import Length, NonNegative
from lab.core.types import FloatArray, Row
from lab.model.attention.inspection import BLOCK_LOGITS, LayerLogits, layer_inputs
from lab.model.attention.layout import LayerInputs
from lab.model.huggingface.foreign import AnyDecoder

REFERENCE = 16  # d2 in tokens (section 2.2)
SHIFTS = (0, 2, 4, 6, 8, 10, 12, 14, 15, 17, 18, 20, 22, 50, 100, 200, 500, 1000, 2000)  # d1 (section 2.2)


class Arithmetic(NamedTuple):
    """Where rounding happens: of the rotated queries and keys, and in the whole model."""

    rounding: torch.dtype | None = None
    whole: bool = False


ARITHMETICS = {"fp32": Arithmetic(), "bf16": Arithmetic(torch.bfloat16), "bf16_model": Arithmetic(torch.bfloat16, True)}


class PrecisionOptions(command.TextOptions):
    """Options of this command."""

    length: Length | None = None
    """Tokens of the texts of D; default: the training window, 512 at most."""
    shifts: tuple[NonNegative, ...] | None = None
    """Shifts d1 of D in tokens, with commas between them, in addition to 0; default: the paper's."""
    reference: NonNegative = REFERENCE
    """Shift d2 of D and D_logit in tokens."""
    lengths: tuple[Length, ...] | None = None
    """Tokens of the texts of D_logit; default: powers of two from 64 up to two training windows, 8192 at most."""
    whole_model: bool = False
    """Whether to compute with the whole model in bfloat16 as well, each shift in a forward pass of its own."""


class Precision(texts.OnTexts):
    """D and D_logit for each weights and arithmetic."""

    kind = "precision"
    options: PrecisionOptions

    def prepare(self) -> None:
        """Choose lengths, draw the texts, and reject methods that a shift changes in exact arithmetic."""
        options, model = self.options, self.subject.model
        window = model.train_len
        self.n_tokens = options.length or min(window, 512)
        # Section 2.2 measures D_logit from 64 to 8192 tokens.
        usual = self.subject.cap_length(min(2 * window, 8192))
        self.lengths = sorted({*(options.lengths or subject.doublings(64, usual))})
        self.shifts = sorted({0, *(options.shifts or SHIFTS)})
        longest = max(self.n_tokens, *self.lengths)
        if depends_on_positions(model.decoder, longest, [options.reference, *self.shifts]):
            rule = "depends on the positions themselves, so that a shift changes attention in exact arithmetic too"
            raise ConfigError(f"position: {model.method} {rule}; measure with another method")
        # One set of texts serves all lengths, which read them from their beginning.
        self.texts = self.sample_texts(longest)

    def rows(self) -> Iterator[Row]:
        """Measure every text with both weights and in every arithmetic; `std` is over texts, None of a single one."""
        trained, reference = self.subject.model.decoder, self.options.reference
        arithmetics = list(ARITHMETICS.items())[: 2 + self.options.whole_model]
        decoders = {"trained": trained, "random": subject.build_random(trained, self.options.seed)}
        for (weights, decoder), (name, arithmetic) in product(decoders.items(), arithmetics):
            used = subject.to_bfloat16(decoder) if arithmetic.whole else decoder
            parts, logits = [], []
            # One text at a time: the logits of a shift take memory that grows with the square of the length.
            for text in Bar(self.texts[:, None], desc="precision", unit="text"):
                parts.append(key_differences(used, text[:, : self.n_tokens], self.shifts, arithmetic, reference))
                first = partial(first_logit_difference, used, shift=0, arithmetic=arithmetic, reference=reference)
                logits.append([first(text[:, :length]).item() for length in self.lengths])
            by_token = torch.cat(parts).cpu().numpy()
            pair = {"weights": weights, "arithmetic": name, "reference": reference}
            about = {**self.origin, "metric": "D", **pair}
            for shift, values, profile in zip(self.shifts, by_token.sum(-1).T, by_token.mean(0), strict=True):
                share = float(profile[0] / profile.sum()) if profile.any() else None
                row = {**about, "shift": shift, "tokens": self.n_tokens, **summarize_texts(values)}
                yield {**row, "first_token_frac": share}
            for length, values in zip(self.lengths, np.array(logits).T, strict=True):
                yield {**about, "metric": "D_logit", "shift": 0, "tokens": length, **summarize_texts(values)}

    def text(self, rows: Sequence[Row]) -> str:
        """Write D and D_logit as tables, means over texts, a column for each weights and arithmetic."""
        heads = {
            ("D", "shift"): f"D (Eq. 4): {self.n_tokens:,} tokens, mean over n = {len(self.texts)}",
            ("D_logit", "tokens"): f"D_logit (Eq. 5): shift 0 against {self.options.reference}",
        }
        tables = []
        for (metric, index), head in heads.items():
            curves = [
                {**row, "curve": f"{row['weights']} {row['arithmetic']}"} for row in rows if row["metric"] == metric
            ]
            tables.append(f"{head}\n{to_text(pivot(curves, index, 'curve', 'value').rename('{:,}'.format), '.3g')}")
        return "\n\n".join(tables)


def summarize_texts(values: FloatArray) -> Row:
    """Summarize a number over all texts."""
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"value": float(values.mean()), "std": std, "n": len(values)}


@torch.no_grad()
def key_differences(
    decoder: AnyDecoder,
    tokens: Tensor,
    shifts: Sequence[int],
    arithmetic: Arithmetic,
    reference: int = REFERENCE,
    *,
    most: int = BLOCK_LOGITS,
) -> Tensor:
    """Compute the terms of D by key for every shift against a reference; D is their sum.

    For an arithmetic of the whole model the decoder is given in bfloat16. At most `most` logits of a shift are held.

    Shapes: tokens int64 (B, T); returns float64 (B, len(shifts), T).
    """
    batch, n_tokens = tokens.shape
    total = torch.zeros(batch, len(shifts), n_tokens, dtype=torch.float64, device=tokens.device)
    for first, *others in shift_logits(decoder, tokens, [reference, *shifts], arithmetic):
        for part in first.blocks(most):
            weights = first.block(part).softmax(-1)
            for number, other in enumerate(others):
                gap = (other.block(part).softmax(-1) - weights).abs()
                total[:, number, : part.stop] += gap.sum((1, 2), dtype=torch.float64)
    # Key j is visible to the T - j queries from j on: 1 / n_j of Eq. 4.
    queries_seeing = torch.arange(n_tokens, 0, -1, device=tokens.device)
    return total / queries_seeing


@torch.no_grad()
def first_logit_difference(
    decoder: AnyDecoder, tokens: Tensor, shift: int, arithmetic: Arithmetic, reference: int = REFERENCE
) -> Tensor:
    """Compute D_logit of a shift against a reference: int64 (B, T) -> float64 (B,)."""
    batch, n_tokens = tokens.shape
    total = torch.zeros(batch, dtype=torch.float64, device=tokens.device)
    for layers in shift_logits(decoder, tokens, [reference, shift], arithmetic):
        a, b = [logits.block(slice(0, n_tokens), slice(0, 1)) for logits in layers]
        total += (a - b).abs().sum((1, 2, 3), dtype=torch.float64)
    return total / n_tokens


def shift_logits(
    decoder: AnyDecoder, tokens: Tensor, shifts: Sequence[int], arithmetic: Arithmetic
) -> Iterator[list[LayerLogits]]:
    """Yield each layer's logits at every shift: of forward passes of their own, or of one that is not shifted."""
    layers: Iterator[Sequence[LayerInputs]]
    if arithmetic.whole:
        # The passes advance layer by layer together, so that the inputs of one layer alone are in memory.
        layers = zip(*[layer_inputs(decoder, tokens, shift=shift) for shift in shifts], strict=True)
    else:
        layers = ([layer.shifted(shift) for shift in shifts] for layer in layer_inputs(decoder, tokens))
    for inputs in layers:
        yield [LayerLogits(one, arithmetic.rounding) for one in inputs]


def depends_on_positions(decoder: AnyDecoder, n_tokens: int, shifts: Sequence[int]) -> bool:
    """Return whether a shift changes attention in exact arithmetic too, where D would measure the position method."""
    # All pairs of 256 positions decide whether a method depends on distances alone.
    ids = torch.linspace(0, n_tokens - 1, min(n_tokens, 256)).round().long()
    distance, frequencies = decoder.distance, decoder.frequencies

    def visible_inputs(shift: int) -> Tensor:
        # Everything that attention takes from positions. For hidden keys `rel_pos` is not specified.
        rel_pos = torch.where(ids[:, None] >= ids, distance.rel_pos(ids + shift, ids + shift), 0.0)
        factors = [distance.logit_factor(ids + shift), frequencies.logit_factor(ids + shift, decoder.cfg.n_layers - 1)]
        return torch.column_stack([rel_pos, *factors])

    first = visible_inputs(0)
    # A model has no frequency if it rotates nothing, or if the lab cannot compute its rotation.
    return not frequencies.inv_freq.any() or any(not torch.equal(visible_inputs(shift), first) for shift in shifts)


main = Precision.main


if __name__ == "__main__":
    start(main)
