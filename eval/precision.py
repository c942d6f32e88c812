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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eval.engine.command import Form, TextOptions
from eval.engine.rows import Row, pivot, to_text
from eval.engine.run import OnTexts, run_measure
from eval.engine.shift_difference import (
    ARITHMETICS,
    REFERENCE,
    SHIFTS,
    depends_on_positions,
    first_logit_difference,
    in_bfloat16,
    key_differences,
    rebuilt,
)
from eval.engine.subject import doublings
from lab.command import Bar, start
from lab.draw import beside, draw
from lab.errors import ConfigError
from lab.schema import Length, NonNegative

MOST_TOKENS = 512  # of the texts of D, when their length is not given
LENGTHS = (64, 8192)  # tokens of the texts of D_logit, from and to (section 2.2)
WINDOWS = 2  # training windows that the longest of them is, at most
PAIR = f"shift 0 against {REFERENCE}"
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(TextOptions):
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


class Precision(OnTexts):
    """D and D_logit for each weights and arithmetic."""

    kind = "precision"
    options: PrecisionOptions
    form = Form(options=PrecisionOptions)

    def prepare(self) -> None:
        """Choose lengths, draw the texts, and refuse methods that a shift changes in exact arithmetic."""
        options, model = self.options, self.subject.model
        window = model.train_len or MOST_TOKENS
        first, last = LENGTHS
        self.n_tokens = options.length or min(window, MOST_TOKENS)
        self.lengths = sorted({*(options.lengths or doublings(first, min(WINDOWS * window, last)))})
        self.shifts = sorted({0, *(options.shifts or SHIFTS)})
        self.longest = max(self.n_tokens, *self.lengths)
        if depends_on_positions(model.decoder, self.longest, self.shifts):
            rule = "depends on the positions themselves, so that a shift changes attention in exact arithmetic too"
            raise ConfigError(f"position: {model.method} {rule}; measure with another method")
        self.texts = self.draw_texts(self.longest)

    def records(self) -> Iterator[Row]:
        """Measure every text with the model's weights and with random ones, in every arithmetic.

        A result is a D, a D_logit or a profile by token; `std` is over texts, None of a single one.
        """
        trained = self.subject.model.decoder
        names = [name for name, arithmetic in ARITHMETICS.items() if self.options.whole_model or not arithmetic.whole]
        decoders = {"trained": trained, "random": rebuilt(trained, self.options.seed)}
        bar = Bar(total=len(decoders) * len(names) * len(self.texts), desc="precision", unit="text")
        with bar:
            for weights, decoder in decoders.items():
                for name in names:
                    arithmetic, profiles, logits = ARITHMETICS[name], [], []
                    used = in_bfloat16(decoder) if arithmetic.whole else decoder
                    for text in self.texts[:, None]:
                        profiles.append(key_differences(used, text[:, : self.n_tokens], self.shifts, arithmetic))
                        logits.append([first_logit_difference(used, text[:, :n], 0, arithmetic) for n in self.lengths])
                        bar.update()
                    about = {"weights": weights, "arithmetic": name, "reference": REFERENCE}
                    by_token = torch.cat(profiles).cpu().numpy()
                    yield from self.rows_of(about, by_token, np.array([[float(x) for x in row] for row in logits]))

    def rows_of(self, about: Row, by_token: Values, by_length: Values) -> Iterator[Row]:
        """Make the results of one weights and arithmetic.

        Shapes: by_token float64 (texts, len(shifts), n_tokens), the terms of D; by_length float64 (texts,
            len(lengths)), D_logit.
        """
        for shift, values, profile in zip(self.shifts, by_token.sum(-1).T, by_token.mean(0), strict=True):
            first = float(profile[0] / profile.sum()) if profile.any() else None
            row = {**about, "shift": shift, "tokens": self.n_tokens, **summary(values), "first_token_frac": first}
            yield {"metric": "D", **row}
        profile = by_token.mean(0)[self.shifts.index(0)]
        row = {**about, "shift": 0, "tokens": self.n_tokens, "n": len(by_token), "values": profile.tolist()}
        yield {"metric": "D_by_token", **row}
        for length, values in zip(self.lengths, by_length.T, strict=True):
            yield {"metric": "D_logit", **about, "shift": 0, "tokens": length, **summary(values)}

    def text(self, rows: Sequence[Row]) -> str:
        """Write D and D_logit as tables, means over texts."""
        by_shift = pivot(of(rows, "D"), "shift", "curve", "value").map("{:.3g}".format).rename("{:,}".format)
        first = {row["curve"]: row["first_token_frac"] for row in of(rows, "D") if row["shift"] == 0}
        by_shift.loc["first token"] = {curve: "-" if x is None else f"{x:.1%}" for curve, x in first.items()}
        by_length = pivot(of(rows, "D_logit"), "tokens", "curve", "value").map("{:.3g}".format).rename("{:,}".format)
        heads = f"D (Eq. 4): {self.n_tokens:,} tokens, mean over n = {len(self.texts)}", PAIR
        return f"{heads[0]}\n{to_text(by_shift)}\n\nD_logit (Eq. 5): {heads[1]}\n{to_text(by_length)}"

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw a picture like Figure 1 of arXiv:2411.13476, with logarithmic axes so that fp32 is seen too."""
        by_shift = [{**row, "shift": str(row["shift"])} for row in of(rows, "D")]
        by_token = [
            {"token": token, "value": value, "curve": row["curve"]}
            for row in of(rows, "D_by_token")
            for token, value in enumerate(row["values"], 1)
        ]
        shifts = f"shift of all positions (tokens), against a shift of {REFERENCE}"
        return beside(
            panel(by_shift, "shift", f"attention difference D, {self.n_tokens:,} tokens", shifts, "D"),
            panel(by_token, "token", f"its terms by token, {PAIR}", "token (the first is 1)", "term"),
            panel(of(rows, "D_logit"), "tokens", f"logits of the first token, {PAIR}", "length (tokens)", "D_logit"),
            title=self.title,
        )


def of(rows: Sequence[Row], metric: str) -> list[Row]:
    """Choose the rows of one metric, and name the curve of each."""
    return [{**row, "curve": f"{row['weights']} {row['arithmetic']}"} for row in rows if row["metric"] == metric]


def panel(rows: Sequence[Row], x: str, title: str, x_title: str, y_title: str) -> Any:
    """Draw a line for each weights and arithmetic; an exact 0 has no place on a logarithmic axis and leaves a gap."""
    shown = [{**row, "value": row["value"] or None} for row in rows]
    some = any(row["value"] for row in shown)
    titles: dict[str, Any] = {"title": title, "x_title": x_title, "y_title": y_title}
    return draw(shown, x, "value", "curve", log_x=x != "shift", log_y=some, marks=x != "token", width=380, **titles)


def summary(values: Values) -> Row:
    """Summarize a number over all texts."""
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"value": float(values.mean()), "std": std, "n": len(values)}


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_measure(Precision, arguments)


if __name__ == "__main__":
    start(main)
