"""Count what a corpus asks for: targets by the distance of their evidence, and how often training attends across it.

    probe-lab demand CONFIG|RUN|TEXT [--tokens=N] [--section.key=value ...] [--plot]

f(i) is the number of pairs of tokens i apart (lab/counts/position_counts.py). g(d) is the demand: the targets whose
nearest evidence lies d tokens back (lab/counts/rows.py). Of a CONFIG, both are counted in the first packs of its
run, and nothing is trained. Of a RUN, they are what it has counted. A TEXT is a file, a folder or a pattern, as
data.corpus.path takes it; its window and its BPE are those of configs/cpu_stdlib.yaml unless settings say otherwise.

    probe-lab demand configs/cpu_demo.yaml --plot
    probe-lab demand configs/cpu_demo.yaml --evidence.tokens=4 --tokens=1e6
    probe-lab demand runs/cpu_demo
    probe-lab demand essays.txt --data.window=512 --data.tokenizer.vocab_size=2048

Targets without a loss do not count. If weights make a difference, g of all scored targets is printed too.
"""

import itertools
from dataclasses import asdict
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge, Le

from eval.engine.command import EvaluationSpec, Request, run_evaluation
from eval.engine.text import Result, to_text
from lab import config
from lab.analysis import run as analysis
from lab.config.settings import Settings
from lab.core import command, launch, schema
from lab.core.arguments import settings_lines, split_options
from lab.core.chart import Axis, plot_lines
from lab.core.errors import ConfigError
from lab.core.types import Row
from lab.counts import SavedCounts
from lab.counts.saved import bin_edges, per_distance
from lab.data import module, preparation, text_files
from lab.data.batch import to_batch
from lab.runs import source
from lab.train.record import Counting


class DemandOptions(schema.Section):
    """Options of the command, in addition to the settings of a run."""

    tokens: Annotated[float, Ge(1), Le(1e12)] | None = None
    """Tokens to read, a pack more at most; default: those of the run or the TEXT, 3,000,000 at most."""


def report_demand(request: Request) -> Result:
    """Count or read f and g; the rows are what was counted in all, and bins of distances."""
    place = request.model
    options, settings = split_options(DemandOptions, request.options)
    file = place / source.CONFIG
    if file.is_file():
        if request.options:
            rule = f"would be ignored, a run has counted; name {file}"
            raise ConfigError(*[f"--{name}: {rule}" for name in request.options])
        experiment, counts = config.load_experiment(file), analysis.Run(place).counts()
        analysis.Run(place).g()  # raises where there is none
    else:
        experiment, counts = count_packs(place, options, settings)
    profiles: Settings = {"f": counts.f, "g": counts.g, "g_unweighted": counts.g_unweighted}
    if np.array_equal(profiles["g"], profiles["g_unweighted"]):
        del profiles["g_unweighted"]
    if counts.g_by_ids is not None:
        profiles["g_by_ids"] = counts.g_by_ids
    with_evidence = profiles["g"].sum().item()
    evidence = asdict(experiment.evidence)
    sums = {"tokens": counts.tokens, "targets": counts.targets, "with_evidence": with_evidence}
    method = ", ".join([f"{name} {value}" for name, value in evidence.items()]).removeprefix("method ")
    summary = (
        f"{counts.tokens:,} tokens read, {counts.targets:,.0f} targets, {with_evidence:,.0f} "
        f"({with_evidence / max(1, counts.targets):.1%}) with evidence by {method}"
    )
    bins, text = tabulate_bins(profiles)
    name = (place.name if place.is_dir() else place.stem).replace("*", "all")  # of a pattern
    rows: list[Row] = [{"metric": "counted", **sums, "evidence": evidence}]
    rows += [{"metric": "demand", **row} for row in bins.to_dict("records")]
    picture = partial(plot_demand, profiles, f"{name}: {summary}")
    return request.save(f"demand-{name}", f"{summary}\n{text}", rows, picture)


def count_packs(place: Path, options: DemandOptions, overrides: Settings) -> tuple[config.Experiment, SavedCounts]:
    """Count the first packs of a config's run, or of a text."""
    settings = {}
    suffixes = (*text_files.ROWS, *text_files.PLAIN)
    is_text = place.is_dir() or text_files.has_suffix(place.name, suffixes) or has_magic(str(place))
    if is_text:
        # All of the text is read, in packs with room for its window, and no probe reads it.
        settings = {"data.corpus.name": "text", "data.corpus.path": str(place), "data.held_out_frac": 0}
        settings |= {"probe.loss_tokens": 0, "probe.haystack": str(place)}
        if window := overrides.get("data.window"):
            settings |= {"train.batch_tokens": window, "train.micro_batch_tokens": window}
    settings |= overrides
    experiment = config.load_experiment(Path("cpu_stdlib") if is_text else place, settings)
    data = module.PackedData(experiment)
    if is_text:
        preparation.prepare(experiment.data, workers=launch.cores())
    data.prepare_data()
    data.setup()
    counting = Counting(experiment)
    counts = counting.local
    available = data.store.n_tokens if is_text else experiment.train.tokens
    wanted = int(options.tokens or min(3_000_000, available))
    # The streams of a run's processes take turns, as in training.
    packs = map(next, itertools.cycle([data.stream(j) for j in range(data.n_streams)]))
    with command.Bar(total=wanted, desc="read", unit="tok", unit_scale=True, leave=False) as bar:
        while bar.n < wanted:
            counting.add(batch := to_batch(next(packs)))
            bar.update(sum(batch.pack.lengths))
    targets = counts.supervised_f()[0].item()
    saved = SavedCounts(
        counts.lengths,
        counts.frequency(),
        counts.tokens,
        g=counts.g(),
        g_unweighted=counts.evidence,
        targets=targets,
        g_by_ids=counts.demand_by_ids if counts.has_gaps else None,
    )
    return experiment, saved


def tabulate_bins(profiles: Settings) -> tuple[pd.DataFrame, str]:
    """Tabulate bins of distances, also as text: f and g, and the targets that ask for a bin or a larger distance."""
    edges = bin_edges(len(profiles["f"]), 2)
    rows = pd.DataFrame({name: np.add.reduceat(values, edges[:-1]) for name, values in profiles.items()})
    rows["g_or_farther"] = rows["g"][::-1].cumsum()
    ends = list(zip(edges, np.array(edges[1:]) - 1))
    names = ["-".join(dict.fromkeys([f"{low:,}", f"{high:,}"])) for low, high in ends]
    text = to_text(rows.set_index(pd.Index(names, name="distance")), ",.0f")
    return pd.DataFrame(ends, columns=["from", "to"]).join(rows), text


def plot_demand(profiles: Settings, title: str) -> Any:
    """Plot the mean f and g of each distance, both axes logarithmic; distances without any are omitted."""
    axes = Axis("distance", "distance (tokens)", log=True), Axis("per distance", log=True)
    return plot_lines(per_distance(profiles), *axes, "profile", title=title, names=list(profiles), marks=False)


SPEC = EvaluationSpec(
    name="demand",
    description=__doc__,
    excluded=("--distance", "--frequency"),
    takes=lambda place: place.suffix == ".yaml" or (place / source.CONFIG).is_file(),  # not the files of a TEXT
    missing="CONFIG|RUN|TEXT: must be the first argument; for instance configs/cpu_demo.yaml",
    settings=partial(settings_lines, DemandOptions),
    stopped=command.NOTHING_WRITTEN,
)
main = partial(run_evaluation, SPEC, report_demand)


if __name__ == "__main__":
    command.start(main)
