"""Measure attention entropy by layer and by the number of visible tokens.

    python -m eval.entropy MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. The entropy of a query's attention weights p, -sum p ln p in nats, is averaged over heads and texts and
compared with ln n, that of n equal weights (arXiv:2401.07004, Figure 1):

    python -m eval.entropy runs/cpu_demo
    python -m eval.entropy runs/cpu_demo --tokens=768 --texts=40 --plot
    python -m eval.entropy runs/cpu_demo --lengths=64,128,256 --plot -o entropy
    python -m eval.entropy models/Llama-2-7B-Chat --text=pile_arxiv.jsonl --texts=128 --tokens=4096

The last has the paper's model, documents, their number and length; its released code averages the weights of the first
head over documents before it takes their entropy.

The model computes in float32 with its own position methods, or with others; theta and logit factor take effect:

    python -m eval.entropy runs/cpu_demo --frequency=entropy_abf:train_len=192

Prints a table, and writes a line for each layer and number of visible tokens to the file that the last line names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from eval.engine.command import Form, Options, Request, run
from eval.engine.rows import Found
from eval.engine.subject import device_for, doublings, note_idle_distance, refuse_far
from eval.engine.table import to_text
from eval.engine.texts import result_file, texts_of, write_results
from eval.entropy.attention_entropy import attention_entropy
from eval.entropy.picture import draw_entropy
from lab.bars import Bar
from lab.command import NOTHING_WRITTEN, start
from lab.loading import OpenedModel, open_model
from lab.schema import Length, Positive

WINDOWS = 2  # training windows that a text is long, so that both sides of the window are seen
MOST_TOKENS = 8192  # of a text whose length is not given

Curves = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EntropyOptions(Options):
    """Options of this command."""

    tokens: Positive | None = None
    """Tokens of each text; left out, the largest of --lengths, or else two training windows, 8192 at most."""
    lengths: tuple[Length, ...] | None = None
    """Numbers of visible tokens in the results, with commas between them; left out, powers of two up to --tokens."""

    def rules(self) -> list[str]:
        """Refuse more visible tokens than a text has."""
        faults = super().rules()
        if self.lengths is not None and self.tokens is not None and max(self.lengths) > self.tokens:
            faults.append(f"lengths={max(self.lengths)}: must be <= tokens={self.tokens}; raise --tokens")
        return faults

    def text_tokens(self, train_len: int | None) -> int:
        """Return the length of the texts."""
        return self.tokens or max(self.lengths or (min(WINDOWS * (train_len or MOST_TOKENS), MOST_TOKENS),))


def measure(request: Request) -> Found:
    """Measure, write the results, and return the table.

    Raises: LabError.
    """
    options: EntropyOptions = request.options
    device = device_for(options.device)
    model = open_model(request.model, request.overrides, device=device)
    refuse_far(request.options, model, device)
    n_tokens = options.text_tokens(model.train_len)
    visible = sorted({*(options.lengths or (*doublings(2, n_tokens), n_tokens))})
    note_idle_distance(request.overrides, model.decoder.distance, n_tokens)
    file = result_file("entropy", request, model)
    texts = Bar(texts_of(model, options, n_tokens, device), desc="entropy", unit="text")
    curves = torch.cat([attention_entropy(model.decoder, text[None]) for text in texts]).cpu().numpy()
    mean = curves.mean(0)

    def draw(title: str, picture: Path) -> None:
        draw_entropy(mean, title, model.train_len, picture)

    found = write_results(file, model, request, device, records(curves, visible, model), draw)
    return found._replace(text=table(mean, visible))


def records(curves: Curves, visible: Sequence[int], model: OpenedModel) -> Iterator[dict[str, Any]]:
    """Make a result for each layer and number of visible tokens; `std` is over texts, None of a single one."""
    texts, n_layers, _ = curves.shape
    n = texts * model.decoder.cfg.n_heads
    for layer in range(n_layers):
        for count in visible:
            values = curves[:, layer, count - 1]
            yield {
                "metric": "attention_entropy",
                "layer": layer,
                "visible": count,
                "entropy": float(values.mean()),
                "std": float(values.std(ddof=1)) if texts > 1 else None,
                "uniform": float(np.log(count)),
                "texts": texts,
                "n": n,
            }


def table(curves: Curves, visible: Sequence[int]) -> str:
    """Format the curves as a table: a row for each layer, a column for each number of visible tokens."""
    columns = pd.Index([f"{count:,}" for count in visible])
    layers = pd.Index([f"layer {layer}" for layer in range(len(curves))], name="visible tokens")
    frame = pd.DataFrame(curves[:, np.array(visible) - 1], layers, columns)
    frame.loc["uniform, ln n"] = np.log(visible)
    return to_text(frame, ".3f")


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.entropy", __doc__, Form(options=EntropyOptions), measure, arguments, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
