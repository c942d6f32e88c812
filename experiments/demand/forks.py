"""Forks: arms that begin with the weights of one trained base, and differ in which targets lose their loss.

A base is trained on 3M tokens, with a corpus seed, first weights and prompts of its own. Its arms start from its
weights, with fresh moments of AdamW, and train on 1M tokens of that corpus in an order that they share. Warm-up and
decay are those of a run of 1M tokens. Both compute in bfloat16, attention in float32, with one thread. All arms of a
seed run on one processor, which their environment.json names.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from lab.sweep.planning import PlannedRun, planned_run

Config = dict[str, Any]
START = (sys.executable, "-m", "lab.fit")
COMMON: Config = {  # no probe of training's own: an evaluation follows
    "train.precision": "bf16",
    "train.threads": 1,
    "probe.every_tokens": None,
    "probe.distance_tests": 0,
    "probe.distance_points": None,
}
GENERATED: Config = {
    "data.corpus.log_std": 0.8,
    "probe.tests": 10,
    "probe.step": 96,
    "probe.max_length": 192,
}
BASE_TOKENS, FORK_TOKENS = 3_000_000, 1_000_000
FORK_SEED = 100  # added to the seed of a base: the order of the text that its arms share
GAPS: Config = {"skip": {"method": "pose", "target_len": 384}}


class Forks(NamedTuple):
    """A base's settings, those of its arms by name, and how many seeds there are."""

    base: Config
    arms: dict[str, Config]
    seeds: int = 5


def off(beyond: int, control: str = "none", **more: Any) -> Config:
    """Take the loss off targets whose evidence lies farther, or off those of a control."""
    return {"weights": {"by": "evidence", "keep": [[0, beyond]], "control": control, **more}}


def learning(beyond: int) -> Forks:
    """Fork a base without far loss: with it, without it, and without that of as many near targets of the same kind."""
    arms = {"all": {}, "far off": off(beyond), "kind off": off(beyond, "kind")}
    return Forks(off(beyond), {f"{name} {beyond}": settings for name, settings in arms.items()})


BY_IDS = {control: {**GAPS, **off(64, control, distance="ids")} for control in ("none", "near", "kind")}
FORKS = {  # by the table of their records
    "S1": Forks(
        BY_IDS["none"],
        {"all": GAPS, "far off": BY_IDS["none"], "near off": BY_IDS["near"], "kind off": BY_IDS["kind"]},
    ),
    "S3_64": learning(64),
    "S3_96": learning(96),
}


def planned_base(table: str, seed: int, given: Config) -> PlannedRun:
    """Plan a base."""
    return planned(f"{table}-{seed}-base", table, seed, BASE_TOKENS, {**FORKS[table].base, **given})


def planned_arms(table: str, seed: int, base: PlannedRun, given: Config) -> Iterator[PlannedRun]:
    """Plan the arms of a base, whose run folder they read."""
    for arm, settings in FORKS[table].arms.items():
        name = f"{table}-{seed}-{arm.replace(' ', '_')}"
        own = {"start.path": str(base.path), **settings, **given}
        yield planned(name, table, FORK_SEED + seed, FORK_TOKENS, own, corpus=seed)


def planned(name: str, table: str, seed: int, tokens: int, settings: Config, corpus: int | None = None) -> PlannedRun:
    """Plan a run; a generated corpus has the seed of the run, or its own."""
    text = {**GENERATED, "data.corpus.seed": seed if corpus is None else corpus}
    own = {"run.name": name, "run.seed": seed, "train.tokens": tokens}
    return planned_run((*START, "configs/cpu_short.yaml"), {**COMMON, **text, **own, **settings}, {})
