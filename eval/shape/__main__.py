"""Plan the shape of a run's position frequency: how close it comes to the target, by which draws, at which cost.

    python -m eval.shape CONFIG [--section.key=value ...] [--plot] [-o FOLDER]

CONFIG is that of a run with a shape section; nothing is trained. An embedded corpus is made where it is missing, any
other must have been prepared.

    python -m eval.shape configs/shape_demo.yaml
    python -m eval.shape configs/shape_demo.yaml --shape.target.exponent=0.3 --plot
    python -m eval.shape configs/shape_demo.yaml --shape.strategy.method=pack --data.mode=concatenated

A target that the corpus cannot reach by these means is refused, with the strength at which it can be reached.
Exit status: 0 done; 2 a mistake in the input, or a target out of reach, one line each on stderr.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lab.data.shaping_cost import Cost, cost_of

from eval.common.command import Form, Request, run
from eval.common.found import Found, save
from eval.common.tables import to_text
from eval.shape.picture import draw_shape
from lab.command import start
from lab.config import Experiment, load_experiment
from lab.data.module import PackedData
from lab.data.preparation import shard_folder
from lab.data.shaped import shape_corpus
from lab.data.shards import TokenStore
from lab.errors import ConfigError
from lab.shape import Plan

PARTS = 4  # of the window, that the table sums the pairs over


def read_experiment(place: Path, settings: dict[str, Any]) -> Experiment:
    """Read the config and its overrides.

    Raises: ConfigError.
    """
    experiment = load_experiment(place, settings)
    if experiment.shape is None:
        raise ConfigError(f"shape: must be set, {place} leaves it out; for instance --shape.target.exponent=0.5")
    return experiment


def report(experiment: Experiment, picture: Path | None) -> Found:
    """Plan; the rows are the distances with their shares of the pairs, and the costs.

    Raises: LabError.
    """
    shape, data, tokens = experiment.shape, experiment.data, experiment.train.tokens
    assert shape is not None, "read_experiment refuses a run without a shape"
    PackedData(data, seed=0, micro_batch_tokens=experiment.train.micro_batch_tokens, n_streams=1).prepare_data()
    store = TokenStore.open(shard_folder(data), "train")
    shaped = shape_corpus(shape, data, store, experiment.mask)
    lines = [
        f"{shape.strategy.method} for {shape.target.method} at strength {shape.strength:g}",
        table(shaped.plan),
        costs(cost_of(shaped, store, tokens), tokens),
    ]
    if picture is not None:
        draw_shape(shape, shaped, data.window, experiment.run.seed, picture)
    plan, names = shaped.plan, ("natural", "aimed", "reached")
    shares = zip(*(getattr(plan, name).tolist() for name in names), strict=True)
    bins = zip(itertools.pairwise(plan.edges.tolist()), shares, strict=True)
    rows: list[dict[str, Any]] = [
        {"metric": "pairs", "from": low, "to": high - 1, **dict(zip(names, each, strict=True))}
        for (low, high), each in bins
    ]
    cost = {
        "metric": "cost",
        "tokens": tokens,
        "total_variation": plan.distance,
        **vars(cost_of(shaped, store, tokens)),
    }
    return Found("\n".join(lines), [cost, *rows], picture=picture)


def table(plan: Plan) -> str:
    """Format the share of the pairs in each quarter of the window.

    The quarters end at the bins' edges, which are whole distances.
    """
    window = int(plan.edges[-1])
    cuts = np.searchsorted(plan.edges, np.arange(PARTS + 1) * window // PARTS)
    heads = [f"{plan.edges[low]:,}-{plan.edges[high] - 1:,}" for low, high in itertools.pairwise(cuts)]
    head = "share of the pairs at distance" if plan.weights is None else "share of supervised pairs at"
    rows = [
        {head: name} | dict(zip(heads, shares, strict=True))
        for name in ("natural", "aimed", "reached")
        for shares in [np.add.reduceat(getattr(plan, name), cuts[:-1])]
    ]
    text = to_text(rows, dict.fromkeys(heads, ".1%"))
    return f"{text}\n{weights_line(plan, cuts)}total variation, aimed to reached: {plan.distance:.4f}"


def weights_line(plan: Plan, cuts: npt.NDArray[np.int64]) -> str:
    """Write the first and last loss weight of each part; nothing where none are planned."""
    if plan.weights is None:
        return ""
    ends = (plan.weights[plan.edges[[low, high]] - [0, 1]] for low, high in itertools.pairwise(cuts))
    return f"loss weights of the parts, first to last: {', '.join(f'{a:.2f}-{b:.2f}' for a, b in ends)}\n"


def costs(cost: Cost, tokens: int) -> str:
    """Format the costs."""
    return "\n".join(
        [
            f"at {tokens:,} tokens: {cost.repeated_frac:.1%} of them read again; {cost.unread_frac:.1%} of the corpus "
            f"never read; {cost.cut_frac:.1%} of its documents cut",
            f"pairs a token: {cost.pairs_per_token:,.1f}, natural {cost.natural_pairs_per_token:,.1f}",
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def show(request: Request) -> Found:
        name = f"shape-{request.model.stem}"
        picture = (request.folder or Path("runs")) / f"{name}.png" if request.plots else None
        return save(report(read_experiment(request.model, request.options), picture), request.folder, name)

    missing = "CONFIG: must be the first argument, a YAML file; for instance configs/shape_demo.yaml"
    rule = "nothing is trained here; write position.* settings"
    refused = {"--distance": rule, "--frequency": rule, "--text": "write data.corpus settings"}
    return run("eval.shape", __doc__, Form(refused=refused, missing=missing), show, arguments)


if __name__ == "__main__":
    start(main)
