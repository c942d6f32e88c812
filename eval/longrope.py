"""Find LongRoPE's factors for texts longer than training, by an evolutionary search on one-number tests.

    probe-lab longrope MODEL --factor=S [--option=value ...] [-o FOLDER]

A set has a factor e_j for each rotary pair j, with 1 <= e_0 <= e_1 <= ... <= 1.25 S. The first sets are those of PI,
NTK and YaRN, and mutations of them. Each iteration adds mutations and crossings of the best sets so far. A mutation
redraws each factor with probability 0.3, in steps of 0.01 between its neighbours. A crossing takes the other parent's
where it lies between them (arXiv:2402.13753, Algorithm 1):

    probe-lab longrope runs/cpu_demo --factor=2
    probe-lab longrope runs/cpu_demo --factor=2 --points=6 --iterations=10
    probe-lab longrope models/Llama-3.1-8B --factor=4 --haystack=essays.txt

The paper scores a set by perplexity, which near words decide. LongRoPE2 (arXiv:2502.20082) scores answers about needles
instead, and so does this search. A score is the mean log-probability in nats of the right number in the tests of
probe-lab distance, at distances up to the target length. The share of numbers found would be 0 for most sets far beyond
training, and the same for many others, so that the search could not tell better from worse.

No first tokens keep their positions, as with the paper's n = 0. Every set has LongRoPE's factor on the logits, also
that of YaRN. The best of many sets is partly lucky on its tests: "fresh" is the score on as many other tests.

Writes longrope-TOKENS-KEY.yaml, which any command takes by --position="$(cat FILE)", and a config as its section
`position`. RoPE's own frequencies serve texts of up to the training window. Packed rows count as such texts: to train
with the factors found, set position.frequency.length to the target. Scores are kept: the same command continues, and
one with more iterations goes on from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from eval.engine.command import OF_RUNS, Form
from eval.engine.needles import OneNumberOptions, one_number_probe
from eval.engine.rows import Row
from eval.engine.run import Measure
from eval.engine.subject import refuse_far
from lab.command import Bar, start
from lab.files import write_atomic, writing
from lab.positions import frequencies
from lab.probe.effective_distance import OneNumberCase, log_probs
from lab.probe.measuring import one_number_tests
from lab.schema import Tests

POPULATION, PARENTS, CHILDREN, CHANCE = 64, 32, 16, 0.3  # P, k, N1 = N2 and p of arXiv:2402.13753, section 4.1
STEP, BEYOND = 0.01, 1.25  # Table 4
TRIES = 20  # at a crossing that is new, as released
Factors = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LongRopeOptions(OneNumberOptions):
    """Options of this command; the paper has as many texts, which are tests here, and iterations."""

    factor: Annotated[float, Gt(1), Le(1e6)]
    """Factor S = target length / training window."""
    tests: Tests = 5
    """Tests at each distance."""
    iterations: Annotated[int, Ge(1), Le(10_000)] = 40
    """Iterations, each of which adds 32 sets to 64."""


class LongRopeSearch(Measure):
    """The search for one model's factors."""

    kind = "longrope"
    options: LongRopeOptions
    form = Form(options=LongRopeOptions, lacks=OF_RUNS)
    columns = (
        ("factors of", "found_by", ""),
        ("tests", "n", ","),
        ("log p", "score", ".4f"),
        ("fresh", "fresh", ".4f"),
    )

    def prepare(self) -> None:
        """Build the tests and the first sets."""
        model, factor = self.subject.model, self.options.factor
        window = max(round(factor * model.train_len), model.train_len + 1)
        refuse_far({f"factor={factor:g}: target": window}, model, self.subject.device)
        self.probe = probe = one_number_probe(self.subject, self.options, window)
        n = probe.config.distance_tests
        parts = range(n), range(n, 2 * n)
        self.cases, self.fresh = ([probe.case(at, test) for at in probe.distances for test in part] for part in parts)
        own = model.decoder.frequencies
        self.sizes: dict[str, Any] = {"head_dim": 2 * len(own.inv_freq), "theta": own.theta}
        self.stretch: dict[str, Any] = {"factor": factor, "train_len": model.train_len}
        plain = frequencies("rope", **self.sizes).inv_freq
        slowed = {name: frequencies(name, **self.stretch, **self.sizes).inv_freq for name in ("pi", "ntk", "yarn")}
        self.first = {name: tuple(np.round((plain / each).tolist(), 4).tolist()) for name, each in slowed.items()}
        self.place(self.first["pi"])  # a model without rotary pairs refuses it before time is spent

    def place(self, factors: Factors) -> dict[str, Any]:
        """Run the model under LongRoPE with these factors for long texts, and return the method's settings."""
        settings = {**self.stretch, "short_factor": (1.0,) * len(factors), "long_factor": factors}
        self.subject.model.decoder.frequencies = frequencies(self.kind, **settings, **self.sizes)
        return settings

    def log_prob(self, factors: Factors, cases: Sequence[OneNumberCase]) -> float:
        """Compute the mean log-probability of the right numbers, in nats."""
        self.place(factors)
        return round(float(np.mean(log_probs(self.subject, cases, self.probe.budget, self.subject.device))), 6)

    def score(self, factors: Factors) -> float:
        """Score a set, unless an earlier call has."""
        row = self.store.find({"long_factor": factors})
        count = self.bar.known if row else self.bar.update
        row = row or self.store.add({"long_factor": factors, "score": self.log_prob(factors, self.cases)})
        count(1)
        return float(row["score"])

    def rows(self) -> list[Row]:
        """Search, write the best set, and return a row for each of the first sets and for the best."""
        about = {"metric": self.kind, "n": len(self.cases), "distances": self.probe.distances, **self.stretch}
        about |= one_number_tests(self.probe)
        total = POPULATION + 2 * CHILDREN * self.options.iterations
        with Bar(total=total, desc=self.kind, unit="set") as self.bar:
            self.store = self.finished(about, self.cases[0], total, "long_factor")
            rng = np.random.default_rng(self.probe.config.seed)
            first = [*self.first.values()]
            tried = evolve(first, self.score, BEYOND * self.options.factor, rng, self.options.iterations)
        best = max(tried, key=tried.__getitem__)
        rows = []
        for name, factors in {**self.first, "search": best}.items():
            measured = {"found_by": name, "score": tried[factors], "fresh": self.log_prob(factors, self.fresh)}
            rows.append({**self.subject.row, **about, **self.place(factors), **measured})
        section = {"frequency": {"method": self.kind, **self.place(best)}}
        with writing(f"-o {self.folder}", "folder"):
            write_atomic(self.path, f"position: {json.dumps(section)}\n".encode())
        return rows

    @property
    def path(self) -> Path:
        """The file of the best set, named as that of all scores."""
        return self.folder / self.store.path.with_suffix(".yaml").name.replace("tests", self.kind)

    def text(self, rows: Sequence[Row]) -> str:
        """Write the scores before and after, and the factors found."""
        return f"{super().text(rows)}\n\nlong_factor: {', '.join(f'{e:g}' for e in rows[-1]['long_factor'])}"


def evolve(
    first: Sequence[Factors], score: Callable[[Factors], float], most: float, rng: np.random.Generator, iterations: int
) -> dict[Factors, float]:
    """Search for the factors of the highest score, `most` at the most, and return the scores of all sets tried.

    Parents are the best of all sets tried, as the paper updates its top k and never empties it.

    Source: arXiv:2402.13753, Algorithm 1.
    """
    tried = {factors: score(factors) for factors in dict.fromkeys(first)}
    for crossings in [0, *[CHILDREN] * iterations]:
        parents = sorted(tried, key=tried.__getitem__, reverse=True)[:PARENTS]
        mutations = CHILDREN if crossings else POPULATION - len(tried)
        for tries in [TRIES] * crossings + [0] * mutations:  # a crossing that yields nothing new becomes a mutation
            pairs = ([parents[k] for k in rng.integers(len(parents), size=2)] for _ in range(TRIES + tries))
            drawn = (varied(one, most, rng, other if k < tries else None) for k, (one, other) in enumerate(pairs))
            child = next((each for each in drawn if each not in tried), None)
            if child is not None:
                tried[child] = score(child)
    return tried


def varied(factors: Factors, most: float, rng: np.random.Generator, other: Factors | None = None) -> Factors:
    """Redraw factors between their neighbours, or take the other parent's where these lie between them.

    They are changed one after another, and so never decrease.
    """
    child = [1.0, *factors, most]
    for pair in range(1, len(child) - 1):
        low, high = child[pair - 1], child[pair + 1]
        if rng.random() < CHANCE:
            steps = int((high - low) / STEP + 1e-6)  # whole ones, in spite of rounding
            drawn = round(low + STEP * int(rng.integers(steps + 1)), 4) if other is None else other[pair - 1]
            child[pair] = drawn if low <= drawn <= high else child[pair]
    return tuple(child[1:-1])


main = LongRopeSearch.main

if __name__ == "__main__":
    start(main)
