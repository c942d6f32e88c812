"""What a corpus asks for: how many targets have their evidence at each distance, beside how often it is seen.

    python -m eval.demand CONFIG|RUN|TEXT [--tokens=N] [--evidence=METHOD] [--section.key=value ...] [--plot]

f(i) is the number of pairs of tokens i apart (lab/counts/position_counts.py). g(d) is the demand: the targets whose
nearest evidence lies d tokens back (lab/counts/demand.py). Of a CONFIG, both are counted in the first packs of its
run, and nothing is trained. Of a RUN, they are what it has counted. A TEXT is a file or a folder, as
data.corpus.path takes it; its window and its BPE are those of configs/cpu_stdlib.yaml unless settings say otherwise.

    python -m eval.demand configs/cpu_demo.yaml --plot
    python -m eval.demand configs/cpu_demo.yaml --evidence=repeat:tokens=4 --tokens=1e6
    python -m eval.demand runs/cpu_demo
    python -m eval.demand essays.txt --data.window=512 --data.tokenizer.vocab_size=2048

--score=MODEL also stores the model's loss of every training token beside the shards, for weights.control=loss:

    python -m eval.demand configs/cpu_demo.yaml --score=runs/reference

A target counts by its loss weight; where weights make a difference, g without them is shown too.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from annotated_types import Ge, Le

from eval.engine.command import Form, Request, run
from eval.engine.reference import store_losses
from eval.engine.rows import Found, save, to_text
from lab import draw
from lab.analysis import Run
from lab.command import NOTHING_WRITTEN, Bar, parse_method, read_options, settings_lines, start
from lab.config import Experiment, load_experiment
from lab.counts.demand import F, G, edges_of, per_distance
from lab.data.corpora import SUFFIXES
from lab.data.module import PackedData, to_batch
from lab.data.preparation import is_prepared, prepare
from lab.errors import ConfigError
from lab.schema import PathText, Section
from lab.source import CONFIG
from lab.train.recording import Counting

MOST_TOKENS = 3_000_000  # read unless --tokens says otherwise
BASE = Path("cpu_stdlib")  # the config whose settings a TEXT is read by
NAMES = (F, G, "g(d) without loss weights")


@dataclass(frozen=True, kw_only=True)
class DemandOptions(Section):
    """Options of the command beside the settings of a run."""

    tokens: Annotated[float, Ge(1), Le(1e12)] | None = None
    """Tokens to read, a pack more at most; left out, those of the run or the TEXT, 3,000,000 at most."""
    evidence: str | None = None
    """Evidence method, NAME or NAME:parameter=value,...; left out, that of the settings."""
    score: PathText | None = None
    """Model whose losses of all training tokens are stored beside the shards, for weights.control=loss."""


class Demand(NamedTuple):
    """What was counted; `targets` is the sum of all loss weights, so where all weigh 0 or 1 those with a loss.

    Shapes: `f`, `g` and `unweighted`, g without loss weights (max_len,).
    """

    tokens: int
    targets: float
    f: Any
    g: Any
    unweighted: Any


def report(request: Request) -> Found:
    """Count or read f and g; the rows are what was counted in all, and bins of distances.

    Raises: LabError.
    """
    place, given = request.model, dict(request.options)
    own = {field.name: given.pop(field.name) for field in fields(DemandOptions) if field.name in given}
    options = read_options(DemandOptions, own)
    if (place / CONFIG).is_file():
        ignored = [f"--{name}: would be ignored, a run has counted; name {place / CONFIG}" for name in {**own, **given}]
        if ignored:
            raise ConfigError(*ignored)
        experiment, saved = load_experiment(place / CONFIG), Run(place).counts()
        counts = Demand(saved.tokens, saved.targets, saved.f, Run(place).g(), saved.g_unweighted)
    else:
        experiment, counts = count(place, options, given)
    head = facts(experiment, counts)
    bins = [{"metric": "demand", **row} for row in table(counts)]
    name = f"demand-{place.name if place.is_dir() else place.stem}"
    picture = (request.folder or Path("runs")) / f"{name}.png" if request.plots else None
    if picture is not None:
        draw.save(chart(counts, f"{name.partition('-')[2]}: {summary(head)}"), picture)
    shown = [shown_row(row) for row in bins]
    forms = dict.fromkeys(shown[0], ",.0f") | {"distance": "", "of those with evidence": ".1%"}
    return save(
        Found(f"{summary(head)}\n{to_text(shown, forms)}", [head, *bins], picture=picture), request.folder, name
    )


def count(place: Path, options: DemandOptions, given: Mapping[str, Any]) -> tuple[Experiment, Demand]:
    """Count the first packs of a config's run, or of a text.

    Raises: LabError.
    """
    is_text = place.is_dir() or place.name.endswith(SUFFIXES)
    settings = {**(of_text(place, given) if is_text else {}), **given}
    if options.evidence is not None:
        named = parse_method(options.evidence, "--evidence")
        settings |= {f"evidence.{key}": value for key, value in named.items()}
    experiment = load_experiment(BASE if is_text else place, settings)
    data = PackedData(experiment)
    if is_text or (options.score and experiment.data.embedded and not is_prepared(experiment.data)):
        prepare(experiment.data, workers=len(os.sched_getaffinity(0)))
    if options.score is not None:
        store_losses(experiment.data, Path(options.score))
    data.prepare_data()
    data.setup("fit")
    counting = Counting(experiment.reach, experiment.position.distance)
    counting.here.weights = data.weights
    wanted = int(options.tokens or min(MOST_TOKENS, data.store.n_tokens if is_text else experiment.train.tokens))
    packs = map(next, itertools.cycle([data.stream(j) for j in range(data.n_streams)]))
    with Bar(total=wanted, desc="read", unit="tok", unit_scale=True, leave=False) as bar:
        while bar.n < wanted:
            batch = to_batch(next(packs))
            counting.add(batch)
            bar.update(sum(batch["lengths"]))
    counts = counting.here
    targets = counts.supervised_f()[0].item()
    return experiment, Demand(counts.tokens, targets, counts.frequency(), counts.g(), counts.evidence)


def of_text(place: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which a text is read: all of it, in packs that hold its window."""
    window = given.get("data.window")
    pack = {f"train.{name}": window for name in ("batch_tokens", "micro_batch_tokens")} if window else {}
    held_out = {"data.held_out_frac": 0, "probe.loss_tokens": 0, "probe.haystack": str(place)}  # no probe reads it
    return {"data.corpus.name": "text", "data.corpus.path": str(place), **held_out, **pack}


def columns_of(counts: Demand) -> dict[str, Any]:
    """Return f, g and, where weights make a difference, g without them."""
    columns = {"f": counts.f, "g": counts.g, "g_unweighted": counts.unweighted}
    if np.array_equal(counts.g, counts.unweighted):
        del columns["g_unweighted"]
    return columns


def table(counts: Demand) -> list[dict[str, Any]]:
    """List bins of distances: f and g in each, g as shares, and the targets that ask for the bin or farther."""
    edges = edges_of(len(counts.f), 2)
    columns = {name: np.add.reduceat(values, edges[:-1]) for name, values in columns_of(counts).items()}
    g = columns["g"]
    rows = pd.DataFrame({"from": edges[:-1], "to": np.array(edges[1:]) - 1, **columns})
    rows["g_per_million"] = 1e6 * g / max(1, counts.targets)
    rows["g_share"] = g / max(1, g.sum())
    rows["g_or_farther"] = g[::-1].cumsum()[::-1]
    return rows.to_dict("records")


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Name the columns of a row for people."""
    low, high = row["from"], row["to"]
    out = {"distance": f"{low:,}" if low == high else f"{low:,}-{high:,}", "f": row["f"], "g": row["g"]}
    if "g_unweighted" in row:
        out["g without weights"] = row["g_unweighted"]
    return out | {
        "g per million targets": row["g_per_million"],
        "of those with evidence": row["g_share"],
        "g from here on": row["g_or_farther"],
    }


def facts(experiment: Experiment, counts: Demand) -> dict[str, Any]:
    """Return what was counted in all."""
    evidence = {"evidence": asdict(experiment.evidence)}
    found = {"targets": counts.targets, "with_evidence": counts.g.sum().item()}
    return {"metric": "counted", "tokens": counts.tokens, **found, **evidence}


def summary(head: Mapping[str, Any]) -> str:
    """Describe what was counted in one line."""
    evidence = ", ".join(f"{name} {value}" for name, value in head["evidence"].items()).removeprefix("method ")
    share = head["with_evidence"] / max(1, head["targets"])
    return (
        f"{head['tokens']:,} tokens read, {head['targets']:,.0f} targets, {head['with_evidence']:,.0f} ({share:.1%}) "
        f"with evidence by {evidence}"
    )


def chart(counts: Demand, title: str) -> Any:
    """Draw the mean f and g of each distance, both axes logarithmic; a distance without any is left out."""
    profiles = dict(zip(NAMES, columns_of(counts).values(), strict=False))
    looks: dict[str, Any] = {"log_x": True, "log_y": True, "names": list(profiles), "marks": False}
    return draw.draw(per_distance(profiles), "distance", "per distance", "profile", title=title, **looks)


def settings() -> list[str]:
    """Describe the command's own options."""
    return settings_lines(DemandOptions)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    missing = "CONFIG|RUN|TEXT: must be the first argument; for instance configs/cpu_demo.yaml"
    form = Form(lacks=("--distance", "--frequency"), missing=missing)
    return run("eval.demand", __doc__, form, report, arguments, settings=settings, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
