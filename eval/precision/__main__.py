"""Measure the effect of bfloat16 on RoPE: how much attention changes when all positions are shifted equally.

    python -m eval.precision MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. In exact arithmetic a shift changes nothing. D adds up the differences of the attention weights, D_logit
those of the logits of the first token (arXiv:2411.13476, Eq. 4, 5 and Figure 1); both are measured in
float32 and with rotated queries and keys rounded to bfloat16, as flash attention takes them, on the model's weights and
on random ones of the same config:

    python -m eval.precision runs/cpu_demo
    python -m eval.precision runs/cpu_demo --length=192 --texts=50 --plot
    python -m eval.precision runs/cpu_demo --shifts=0,2,100 --lengths=64,128,256,512 --plot -o precision
    python -m eval.precision models/Llama-2-7B --text=essays.txt --length=4096 --lengths=64,1024,8192 --whole_model=true

eval/precision/shift_difference.py defines where values are rounded. Prints two tables, and writes a line for each
of their numbers, and one for each profile by token, to the file that the last line names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eval.engine.command import Form, Options, Request, run
from eval.engine.rows import Found
from eval.engine.subject import device_for, doublings, note_idle_distance, refuse_far
from eval.engine.texts import result_file, texts_of, write_results
from eval.precision.results import Measured, draw, records, tables
from eval.precision.shift_difference import (
    ARITHMETICS,
    REFERENCE,
    SHIFTS,
    first_logit_difference,
    in_bfloat16,
    key_differences,
    rebuilt,
    shift_faults,
)
from lab.bars import Bar
from lab.command import NOTHING_WRITTEN, start
from lab.errors import ConfigError
from lab.loading import open_model
from lab.model.decoder import Decoder
from lab.schema import Length, NonNegative

MOST_TOKENS = 512  # of the texts of D, when their length is not given
LENGTHS = (64, 8192)  # tokens of the texts of D_logit, from and to (section 2.2)
WINDOWS = 2  # training windows that the longest of them is, at most


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(Options):
    """Options of this command."""

    length: Length | None = None
    """Tokens of the texts of D; left out, the training window, 512 at most."""
    shifts: tuple[NonNegative, ...] | None = None
    """Shifts d1 of D in tokens, with commas between them, against d2 = 16; left out, the paper's; 0 is always added."""
    lengths: tuple[Length, ...] | None = None
    """Tokens of the texts of D_logit; left out, powers of two from 64 up to two training windows, 8192 at most."""
    whole_model: bool = False
    """Whether to compute with the whole model in bfloat16 as well, each shift in a forward pass of its own."""

    def rules(self) -> list[str]:
        """Refuse the shift that everything is compared with."""
        faults = super().rules()
        if REFERENCE in (self.shifts or ()):
            faults.append(f"shifts={REFERENCE}: is what the others are compared with, where D is 0; leave it out")
        return faults

    @property
    def all_shifts(self) -> tuple[int, ...]:
        """Shifts in rising order, 0 among them."""
        return tuple(sorted({0, *(self.shifts or SHIFTS)}))

    def text_tokens(self, train_len: int | None) -> int:
        """Return the length of the texts of D."""
        return self.length or min(train_len or MOST_TOKENS, MOST_TOKENS)

    def logit_lengths(self, train_len: int | None) -> tuple[int, ...]:
        """Return the length of the texts of D_logit."""
        first, last = LENGTHS
        return tuple(sorted(set(self.lengths or doublings(first, min(WINDOWS * (train_len or MOST_TOKENS), last)))))


def measure(request: Request) -> Found:
    """Measure, write the results, and return the tables.

    Raises: LabError.
    """
    options: PrecisionOptions = request.options
    device = device_for(options.device)
    model = open_model(request.model, request.overrides, device=device)
    refuse_far(request.options, model, device)
    n_tokens, lengths = options.text_tokens(model.train_len), options.logit_lengths(model.train_len)
    longest = max(n_tokens, *lengths)
    note_idle_distance(request.overrides, model.decoder.distance, longest)
    faults = shift_faults(model.decoder, longest, options.all_shifts)
    if faults:
        raise ConfigError(*faults)
    texts, file = texts_of(model, options, longest, device), result_file("precision", request, model)
    measured = measure_texts(model.decoder, options, texts, n_tokens, lengths)
    found = write_results(file, model, request, device, records(measured), partial(draw, measured))
    return found._replace(text=tables(measured))


def measure_texts(
    trained: Decoder, options: PrecisionOptions, texts: Tensor, n_tokens: int, lengths: tuple[int, ...]
) -> Measured:
    """Measure every text with the model's weights and with random ones, in every arithmetic."""
    measured = Measured(options.all_shifts, lengths, {}, {})
    names = [name for name, arithmetic in ARITHMETICS.items() if options.whole_model or not arithmetic.whole]
    decoders = {"trained": trained, "random": rebuilt(trained, options.seed)}
    with Bar(total=len(decoders) * len(names) * len(texts), desc="precision", unit="text") as bar:
        for weights, decoder in decoders.items():
            for name in names:
                arithmetic, profiles, logits = ARITHMETICS[name], [], []
                used = in_bfloat16(decoder) if arithmetic.whole else decoder
                for text in texts[:, None]:
                    profiles.append(key_differences(used, text[:, :n_tokens], measured.shifts, arithmetic))
                    logits.append([first_logit_difference(used, text[:, :n], 0, arithmetic) for n in lengths])
                    bar.update()
                measured.by_token[weights, name] = torch.cat(profiles).cpu().numpy()
                measured.by_length[weights, name] = np.array([[float(x) for x in row] for row in logits])
    return measured


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.precision", __doc__, Form(options=PrecisionOptions), measure, arguments, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
