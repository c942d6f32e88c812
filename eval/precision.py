"""Measure the effect of bfloat16 on RoPE: how much attention changes when all positions are shifted equally.

    python -m eval.precision MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. In exact arithmetic a shift changes nothing. D adds up the differences of the attention weights, D_logit
those of the logits of the first token (arXiv:2411.13476, Eq. 4, 5 and Figure 1). Both are measured in float32, and with
rotated queries and keys rounded to bfloat16, as flash attention takes them. The weights are the model's own, and random
ones of the same config:

    python -m eval.precision runs/cpu_demo
    python -m eval.precision runs/cpu_demo --length=192 --texts=50 --plot
    python -m eval.precision runs/cpu_demo --shifts=0,2,100 --lengths=64,128,256,512 --plot -o precision
    python -m eval.precision models/Llama-2-7B --text=essays.txt --length=4096 --lengths=64,1024,8192 --whole_model=true

Prints two tables, and writes a line for each of their numbers, and one for each profile by token, to the file that the
last line names. Where bfloat16 rounds is defined in eval/engine/shift_difference.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from eval.engine.command import Form, Options
from eval.engine.rows import Row, to_text
from eval.engine.run import OnTexts, run_measure
from eval.engine.shift_difference import (
    ARITHMETICS,
    REFERENCE,
    SHIFTS,
    first_logit_difference,
    in_bfloat16,
    key_differences,
    rebuilt,
    shift_faults,
)
from eval.engine.subject import doublings
from lab.command import Bar, start
from lab.draw import beside, draw
from lab.errors import ConfigError
from lab.schema import Length, NonNegative

Values = npt.NDArray[np.float64]
Curves = Mapping[tuple[str, str], Values]  # by weights and arithmetic

MOST_TOKENS = 512  # of the texts of D, when their length is not given
LENGTHS = (64, 8192)  # tokens of the texts of D_logit, from and to (section 2.2)
WINDOWS = 2  # training windows that the longest of them is, at most
MARKED = 40  # points of a line, from which on they are not marked


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
        faults = list(super().rules())
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


class Precision(OnTexts):
    """D and D_logit for each weights and arithmetic.

    Shapes: by_token float64 (texts, len(shifts), n_tokens), the terms of D; by_length float64 (texts, len(lengths)),
        D_logit.
    """

    kind = "precision"
    options: PrecisionOptions
    form = Form(options=PrecisionOptions)

    def prepare(self) -> None:
        """Choose lengths, draw the texts, and refuse methods that a shift changes in exact arithmetic."""
        options, model = self.options, self.subject.model
        self.n_tokens, self.lengths = options.text_tokens(model.train_len), options.logit_lengths(model.train_len)
        self.shifts, self.longest = options.all_shifts, max(self.n_tokens, *self.lengths)
        faults = shift_faults(model.decoder, self.longest, self.shifts)
        if faults:
            raise ConfigError(*faults)
        self.texts = self.draw_texts(self.longest)

    def measure_texts(self) -> None:
        """Measure every text with the model's weights and with random ones, in every arithmetic."""
        self.by_token: dict[tuple[str, str], Values] = {}
        self.by_length: dict[tuple[str, str], Values] = {}
        trained = self.subject.model.decoder
        names = [name for name, arithmetic in ARITHMETICS.items() if self.options.whole_model or not arithmetic.whole]
        decoders = {"trained": trained, "random": rebuilt(trained, self.options.seed)}
        with Bar(total=len(decoders) * len(names) * len(self.texts), desc="precision", unit="text") as bar:
            for weights, decoder in decoders.items():
                for name in names:
                    arithmetic, profiles, logits = ARITHMETICS[name], [], []
                    used = in_bfloat16(decoder) if arithmetic.whole else decoder
                    for text in self.texts[:, None]:
                        profiles.append(key_differences(used, text[:, : self.n_tokens], self.shifts, arithmetic))
                        logits.append([first_logit_difference(used, text[:, :n], 0, arithmetic) for n in self.lengths])
                        bar.update()
                    self.by_token[weights, name] = torch.cat(profiles).cpu().numpy()
                    self.by_length[weights, name] = np.array([[float(x) for x in row] for row in logits])

    def records(self) -> Iterator[Row]:
        """Make a result for every D, D_logit and profile; `std` is over texts, None of a single one."""
        self.measure_texts()
        for (weights, arithmetic), by_text in self.by_token.items():
            curve = {"weights": weights, "arithmetic": arithmetic, "reference": REFERENCE}
            for shift, values, profile in zip(self.shifts, by_text.sum(-1).T, by_text.mean(0), strict=True):
                about = {**curve, "shift": shift, "tokens": self.n_tokens}
                yield {"metric": "D", **about, **summary(values), "first_token_frac": first_share(profile)}
            about = {**curve, "shift": 0, "tokens": self.n_tokens, "n": len(by_text)}
            yield {"metric": "D_by_token", **about, "values": by_text.mean(0)[self.shifts.index(0)].tolist()}
            for length, values in zip(self.lengths, self.by_length[weights, arithmetic].T, strict=True):
                yield {"metric": "D_logit", **curve, "shift": 0, "tokens": length, **summary(values)}

    def text(self, rows: Sequence[Row]) -> str:
        """Write D and D_logit as tables, means over texts."""
        shares = [first_share(terms.mean(0)[self.shifts.index(0)]) for terms in self.by_token.values()]
        by_shift = means({curve: terms.sum(-1) for curve, terms in self.by_token.items()}, "shift", self.shifts)
        by_shift.loc["first token"] = ["-" if share is None else f"{share:.1%}" for share in shares]
        return "\n".join(
            [
                f"D (Eq. 4): {self.n_tokens:,} tokens, mean over n = {len(self.texts)}",
                to_text(by_shift),
                "",
                f"D_logit (Eq. 5): shift 0 against {REFERENCE}",
                to_text(means(self.by_length, "tokens", self.lengths)),
            ]
        )

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw a picture like Figure 1 of arXiv:2411.13476, with logarithmic axes so that fp32 is seen too."""
        at_0, pair = self.shifts.index(0), f"shift 0 against {REFERENCE}"
        by_shift = {curve: terms.sum(-1).mean(0) for curve, terms in self.by_token.items()}
        by_token = {curve: terms.mean(0)[at_0] for curve, terms in self.by_token.items()}
        by_length = {curve: values.mean(0) for curve, values in self.by_length.items()}
        return beside(
            panel(
                by_shift,
                [str(shift) for shift in self.shifts],
                f"attention difference D, {self.n_tokens:,} tokens",
                f"shift of all positions (tokens), against a shift of {REFERENCE}",
                "D (attention weights)",
                legend=True,
            ),
            panel(
                by_token, range(1, self.n_tokens + 1), f"its terms by token, {pair}", "token (the first is 1)", "term"
            ),
            panel(
                by_length, self.lengths, f"logits of the first token, {pair}", "length of the text (tokens)", "D_logit"
            ),
            title=self.title,
        )


def panel(curves: Curves, at: Sequence[Any], title: str, x_title: str, y_title: str, legend: bool = False) -> Any:
    """Draw a line for each weights and arithmetic; an exact 0 has no place on a logarithmic axis and leaves a gap."""
    rows = [
        {"x": x, "value": value if value > 0 else None, "series": f"{weights} weights, {arithmetic}"}
        for (weights, arithmetic), values in curves.items()
        for x, value in zip(at, values, strict=True)
    ]
    named = isinstance(at[0], str)
    some = any(row["value"] is not None for row in rows)
    return draw(
        rows,
        "x",
        "value",
        "series",
        log_x=not named,
        log_y=some,
        marks=len(at) < MARKED,
        title=title,
        x_title=x_title,
        y_title=y_title,
        legend=legend,
        width=380,
    )


def summary(values: Values) -> Row:
    """Summarize a number over all texts."""
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"value": float(values.mean()), "std": std, "n": len(values)}


def first_share(profile: Values) -> float | None:
    """Return the first token's share of D, None where D is 0."""
    return float(profile[0] / profile.sum()) if profile.any() else None


def means(curves: Curves, name: str, at: Sequence[int]) -> pd.DataFrame:
    """Write the means over texts, a column for each weights and arithmetic."""
    columns = {" ".join(curve): values.mean(0) for curve, values in curves.items()}
    return pd.DataFrame(columns, pd.Index([f"{number:,}" for number in at], name=name)).map("{:.3g}".format)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_measure(Precision, arguments)


if __name__ == "__main__":
    start(main)
