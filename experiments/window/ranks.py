"""Score the numbers of a generated answer by teacher forcing, by distance and by rank in the answer.

    python -m experiments.window.ranks RUN    score the documents' answers
    python -m experiments.window.ranks        print the shares of D's records

Documents state four numbers at log-uniform distances and ask for them in shuffled order, so that a number's distance
and its rank are independent. A number is retrieved if each of its digits is the most probable token after the right
ones. Writes eval/ranks.jsonl in the run folder, a row for each rank and each distance of the one-number tests, to which
distances are rounded by their ratio.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.window.plans import DISTANCES
from lab.analysis.table import unpacked
from lab.core.files import write_atomic
from lab.data.synthetic import Synthetic
from lab.loading import open_model


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", nargs="?")
    path = parser.parse_args().run
    if path is None:
        print_shares()
    else:
        score_documents(path)


def print_shares() -> None:
    """Print the shares of the numbers at 24 to 112 tokens that each branch of D retrieves, by rank, of all seeds."""
    parts = []
    with unpacked([Path("experiments/window/records/D.jsonl.xz")]) as places:
        for place in places:
            if (path := place / "eval/ranks.jsonl").exists():
                parts.append(pd.read_json(path, lines=True).assign(branch=place.name.split("-", 2)[2]))
    rows = pd.concat(parts)
    sums = rows[rows["distance"].between(24, 112)].groupby(["branch", "rank"])[["found", "n"]].sum()
    print((sums["found"] / sums["n"]).unstack().round(2).to_string())


def score_documents(path: Path) -> None:
    """Score generated documents by the model of a run folder, and write eval/ranks.jsonl in it."""
    opened = open_model(path)
    tokenizer, experiment = opened.tokenizer, opened.experiment
    assert tokenizer is not None, "a run has a tokenizer"
    assert experiment is not None, "a run has a config"
    window = experiment.data.window
    corpus = Synthetic(
        words=32,
        digits=3,
        repeat_prob=0.8,
        quote_prob=0.3,
        number_prob=0.2,
        order="shuffled",
        median_tokens=0.95 * window,
        log_std=0.01,
        section_tokens=4096,
        question_prob=1.0,
        seed=experiment.run.seed,
    )
    tests: Counter[tuple[int, int]] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    n_documents = 200
    for index in range(n_documents):
        encoding = tokenizer.encode(corpus.document(index))
        tokens = torch.tensor([encoding.ids])
        with torch.no_grad():
            best = opened.decoder(tokens)[0].argmax(-1).tolist()
        starts = np.array(encoding.offsets)[:, 0]
        for rank, (start, end, source) in enumerate(corpus.copies(index), start=1):
            number = range(*np.searchsorted(starts, [start, end]).tolist())
            # The token before the number predicts its first one, as in the one-number test.
            distance = number[0] - 1 - int(np.searchsorted(starts, source - (end - start)))
            cell = rank, DISTANCES[int(np.abs(np.log(np.array(DISTANCES) / distance)).argmin())]
            tests[cell] += 1
            found[cell] += all(best[token - 1] == encoding.ids[token] for token in number)
    rows = []
    for rank, distance in sorted(tests):
        n = tests[rank, distance]
        rows.append(
            {"metric": "found_by_rank", "rank": rank, "distance": distance, "n": n, "found": found[rank, distance]}
        )
    write_atomic(path / "eval/ranks.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


if __name__ == "__main__":
    main()
