"""What the documents of D and W ask for: position frequency, demand, and answers by their distance and rank.

    python -m experiments.window.asked            D: f, g, first and all answers per 1M tokens, for each condition
    python -m experiments.window.asked --fit      W_1M: accuracy at a window of 768 explained by each of four quantities

Both generate documents again, from the settings of experiments.window.plans, and train nothing.

The fit is a description of records that had been seen: a logistic regression of the numbers found in each cell of
prompt length P and distance d, of five seeds, on the logarithm of f(d); of g(d); of d and of P; and of g1(d, P), the
first answers within a factor of 1.2 of d, in documents that have within a factor of 1.4 of P tokens before the answer.
Both factors were chosen after the records had been seen.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from eval.engine.text import to_text
from experiments.window.plans import FRESH_SEED, PLAIN, STAGES, plan_run
from experiments.window.results import open_records
from lab.core.types import IGNORE
from lab.data.synthetic import Synthetic
from lab.data.tokenizer import train_bpe
from lab.evidence.methods import Repeat


class GeneratedText(NamedTuple):
    """Tokens of documents, f and g by distance, and a row of rank, distance and tokens before it for each answer."""

    n_tokens: int
    f: np.ndarray
    g: np.ndarray
    answers: pd.DataFrame


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    if parser.parse_args().fit:
        print(to_text(fit_accuracy(Path("experiments/window/records"))))
    else:
        print(to_text(describe_conditions(STAGES["D"].seeds[0])))


def describe_conditions(seed: int) -> list[dict[str, object]]:
    """Return f, g, first and all answers per 1M tokens of the conditions of D without gaps, in bands of distance."""
    rows: list[dict[str, object]] = []
    for branch, settings in STAGES["D"].branches.items():
        if "skip" in settings:  # its f and g are those of ids, which its run counts
            continue
        documents = generate_documents("D", branch, seed + FRESH_SEED)
        scale = 1e6 / documents.n_tokens
        distance, is_first = documents.answers["distance"], documents.answers["rank"] == 1
        for low, high in ((24, 112), (144, 223), (224, 368), (369, 431), (432, 752)):
            inside = distance.between(low, high)
            rows.append(
                {
                    "condition": branch,
                    "distances": f"{low} to {high}",
                    "f, mean": round(documents.f[low : high + 1].mean() * scale),
                    "g": round(documents.g[low : high + 1].sum() * scale),
                    "first answers": round((inside & is_first).sum() * scale),
                    "all answers": round(inside.sum() * scale),
                }
            )
    return rows


def generate_documents(stage: str, branch: str, seed: int) -> GeneratedText:
    """Generate the documents of a branch, cut at its window, and find their answers; ids are without gaps."""
    experiment = plan_run(f"{stage}-0-{branch}", 0, STAGES[stage].branches[branch], seed, Path("runs")).experiment
    corpus, window = experiment.data.corpus, experiment.data.window
    assert isinstance(corpus, Synthetic), "branches of D and W read the generator's documents"
    texts = [corpus.document(index) for index in range(3_000)]
    tokenizer = train_bpe(texts, 600)
    f, g = np.zeros(window, dtype=np.int64), np.zeros(window, dtype=np.int64)
    n_tokens = 0
    answers: list[tuple[int, int, int]] = []
    for index, text in enumerate(texts):
        encoding = tokenizer.encode(text)
        tokens = np.array([*encoding.ids, 1])
        n_tokens += len(tokens)
        for begin in range(0, len(tokens), window):
            size = min(window, len(tokens) - begin)
            f[:size] += size - np.arange(size)
            targets = np.append(tokens[begin + 1 : begin + size], IGNORE)
            distances = Repeat().distances(tokens[begin : begin + size], targets, [size])
            g += np.bincount(distances[distances > 0], minlength=window)[:window]
        starts = np.array(encoding.offsets)[:, 0]
        for rank, (start, end, source) in enumerate(corpus.copies(index), start=1):
            # The last token before an answer predicts it, as in the one-number test.
            last, needle = np.searchsorted(starts, [start, source - (end - start)]) - [1, 0]
            if last // window == needle // window:
                answers.append((rank, last - needle, last % window + 1))
    return GeneratedText(n_tokens, f, g, pd.DataFrame(answers, columns=["rank", "distance", "tokens"]))


def fit_accuracy(records: Path) -> list[dict[str, object]]:
    """Return the log likelihood of each explanation of the accuracies of W_1M at a window of 768."""
    cells = open_records(records).cells
    cells = cells[(cells["stage"] == "W_1M") & (cells["branch"] == "768") & (cells["method"] == PLAIN)]
    parts = []
    for seed, own in cells.groupby("seed"):
        documents = generate_documents("W_1M", "768", int(str(seed)))
        scale = 1e6 / documents.n_tokens
        first = documents.answers[documents.answers["rank"] == 1]
        d, p = own["distance"].to_numpy(), own["prompt"].to_numpy()
        is_near = np.abs(np.log(first["distance"].to_numpy() / d[:, None])) <= np.log(1.2)
        is_alike = np.abs(np.log(first["tokens"].to_numpy() / p[:, None])) <= np.log(1.4)
        # One more of each, as there are cells without any.
        g1 = (is_near & is_alike).sum(1) * scale + 1
        columns = {"g1(d, P)": np.log(g1), "d": np.log(d), "P": np.log(p)}
        columns |= {"f(d)": np.log(documents.f[d] * scale), "g(d)": np.log(documents.g[d] * scale + 1)}
        parts.append(pd.DataFrame({**columns, "score": own["score"].to_numpy()}))
    table = pd.concat(parts)
    rows: list[dict[str, object]] = []
    for names in (["g1(d, P)"], ["d", "P"], ["f(d)"], ["g(d)"], []):
        rows.append(
            {"explained by": " and ".join(names) or "nothing", "cells": len(table), **fit_logistic(table, names)}
        )
    return rows


def fit_logistic(table: pd.DataFrame, names: list[str]) -> dict[str, object]:
    """Maximize the log likelihood of the numbers found, 24 tests a cell, on the columns named and a constant."""
    x = np.column_stack([np.ones(len(table)), *(table[name] - table[name].mean() for name in names)])
    score = table["score"].to_numpy()

    def loss(weights: np.ndarray) -> float:
        logits = x @ weights
        return float(24 * (np.logaddexp(0, logits) - score * logits).sum())

    result = minimize(loss, np.zeros(x.shape[1]))
    slopes = " and ".join(f"{slope:.2f}" for slope in result.x[1:])
    return {"log likelihood": round(-result.fun), "slopes": slopes or "-"}


if __name__ == "__main__":
    main()
