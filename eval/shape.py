"""Plan loss weights that shape the supervised position frequency: how close it comes to the target, at which cost.

    probe-lab shape CONFIG [--section.key=value ...] [--plot] [-o FOLDER]

CONFIG is that of a run with weights by context. Nothing is trained. An embedded corpus is made where it is missing, any
other must have been prepared.

    probe-lab shape configs/shape_demo.yaml
    probe-lab shape configs/shape_demo.yaml --weights.target.exponent=0.3 --plot

A target that weights cannot reach is refused.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.command import Form, Request, run
from eval.engine.rows import Found, to_text
from lab import command, config, draw, errors
from lab.data import module, preparation, shaped, shards
from lab.shape import Plan

PARTS = 4  # of the window, that the table sums the pairs over
NAMES = ("natural", "aimed", "reached")


def report(request: Request) -> Found:
    """Plan; the rows are the distances with their shares of the pairs, and the cost."""
    experiment = config.load_experiment(request.model, request.options)
    planned = experiment.planned
    if planned is None:
        rule = f"must be context, {request.model} has none"
        raise errors.ConfigError(f"weights.by: {rule}; for instance --weights.by=context --weights.target.exponent=0.5")
    module.PackedData(experiment).prepare_data()
    store = shards.TokenStore.open(preparation.shard_folder(experiment.data), "train")
    plan = shaped.plan_for(planned, experiment.data, store, experiment.mask)
    title = f"weights for {planned.target.method}"
    lines = [
        title,
        table(plan),
        f"pairs a token: {plan.pairs_per_token:,.1f}",
    ]
    shares = pd.DataFrame({"metric": "pairs", "from": plan.edges[:-1], "to": plan.edges[1:] - 1})
    shares = shares.assign(**{name: getattr(plan, name) for name in NAMES})
    rows = [
        {"metric": "cost", "total_variation": plan.distance, "pairs_per_token": plan.pairs_per_token},
        *shares.to_dict("records"),
    ]
    chart = lambda: draw.beside(*panels(shares, plan), title=f"{title}: total variation {plan.distance:.3f}")  # noqa: E731
    return request.save(f"shape-{request.model.stem}", "\n".join(lines), rows, chart)


def table(plan: Plan) -> str:
    """Format the share of the pairs in each quarter of the window, which ends at a bin's edge, and the loss weights."""
    window = int(plan.edges[-1])
    cuts = np.searchsorted(plan.edges, np.arange(PARTS + 1) * window // PARTS)
    heads = [f"{plan.edges[low]:,}-{plan.edges[high] - 1:,}" for low, high in itertools.pairwise(cuts)]
    head = "share of supervised pairs at"
    rows = [
        {head: name} | dict(zip(heads, np.add.reduceat(getattr(plan, name), cuts[:-1]), strict=True)) for name in NAMES
    ]
    ends = (plan.weights[plan.edges[[low, high]] - [0, 1]] for low, high in itertools.pairwise(cuts))
    weights = f"loss weights of the parts, first to last: {', '.join(f'{a:.2f}-{b:.2f}' for a, b in ends)}"
    variation = f"total variation, aimed to reached: {plan.distance:.4f}"
    return "\n".join([to_text(rows, dict.fromkeys(heads, ".1%")), weights, variation])


def panels(shares: pd.DataFrame, plan: Plan) -> Iterator[Any]:
    """Draw the share of the pairs at each distance, and the loss weights."""
    means = shares[[*NAMES]].div(shares["to"] + 1 - shares["from"], axis=0).assign(distance=shares["from"])
    points = means.melt("distance", var_name="profile", value_name="share")
    title = "share of the supervised pairs at each distance"
    yield draw.draw(points, "distance", "share", series="profile", names=NAMES, title=title, marks=False)
    weights = pd.DataFrame({"weight": plan.weights}).rename_axis("context").reset_index()
    title = "loss weight of a target by its visible context"
    yield draw.draw(weights, "context", "weight", title=title, rules=[draw.Rule("y", 1)], marks=False)


MISSING = "CONFIG: must be the first argument, a YAML file; for instance configs/shape_demo.yaml"
main = partial(run, "shape", __doc__, Form(lacks=("--distance", "--frequency"), missing=MISSING), report)


if __name__ == "__main__":
    command.start(main)
