"""The conditions of docs/demand.md as tables: base models, their continued-training branches, and predictions.

A base model is trained on 3M tokens, with a corpus, first weights and prompts of its own seed. Its branches start from
its weights, with fresh moments of AdamW, and train on 1M tokens of that corpus in an order that they share. Warm-up and
decay are those of a run of 1M tokens. All compute in bfloat16, attention in float32, with one thread.
"""

from pathlib import Path
from typing import Any, NamedTuple

from experiments.runs import Config, branch_settings, plan_run
from lab.sweep.planning import PlannedRun

SETTINGS: Config = {"probe.step": 96, "data.corpus.log_std": 0.8}
BASE_TOKENS, BRANCH_TOKENS = 3_000_000, 1_000_000
BASE = "base"
GAPS: Config = {"skip": {"method": "pose", "target_len": 384}}
CONDITIONS = {  # by their names in the records, without D
    BASE: "base model",
    "all": "unmasked",
    "far off": "far-masked",
    "near off": "near-masked",
    "kind off": "matched control",
    "rope": "rope",
    "rope far off": "rope, far-masked",
    "window": "window, rope",
    "window far off": "window, rope, far-masked",
    "no rope": "window, no rope",
    "no rope far off": "window, no rope, far-masked",
}


class Plan(NamedTuple):
    """The distance beyond which the loss is masked, and settings by condition, those of the base model first."""

    beyond: int
    arms: dict[str, Config]
    n_seeds: int = 5


class Prediction(NamedTuple):
    """A prediction about the accuracy of one condition less another: `least` or more, or without it none."""

    name: str
    table: str
    one: str
    other: str
    least: float | None = None
    is_one_sided: bool = False


def mask(beyond: int, control: str = "none", **more: Any) -> Config:
    """Mask the loss of targets whose evidence is farther away, or that of a control."""
    return {"weights": {"by": "evidence", "keep": [[0, beyond]], "control": control, **more}}


def plan_without_gaps(beyond: int) -> Plan:
    """Plan branches of a base model without far loss: with it, without it, and without that of a matched control."""
    far = mask(beyond)
    arms = {BASE: far, f"all {beyond}": {}, f"far off {beyond}": far, f"kind off {beyond}": mask(beyond, "kind")}
    return Plan(beyond, arms)


FAR, NEAR, KIND = ({**GAPS, **mask(64, control, distance="ids")} for control in ("none", "near", "kind"))
PLANS = {  # by the table of their records
    "S1": Plan(64, {BASE: FAR, "all": GAPS, "far off": FAR, "near off": NEAR, "kind off": KIND}),
    "S3_64": plan_without_gaps(64),
    "S3_96": plan_without_gaps(96),
    "layers": Plan(96, {}, 0),  # recorded; sweeps/layers_mini.yaml trains them
}
PREDICTIONS = (
    Prediction("S1a", "S1", "unmasked", "far-masked", 0.2),
    Prediction("S1a", "S1", "near-masked", "far-masked", 0.2),
    Prediction("S1a", "S1", "matched control", "far-masked", 0.2),
    Prediction("S3a", "S3_64", "matched control", "far-masked", 0.2),
    Prediction("S3a", "S3_64", "unmasked", "far-masked", 0.2),
    Prediction("S3a", "S3_96", "matched control", "far-masked", 0.0),
    Prediction("S3a", "S3_96", "unmasked", "far-masked", 0.0),
    Prediction("S3b", "S3_64", "unmasked", "matched control"),
    Prediction("S3b", "S3_96", "unmasked", "matched control"),
)


def plan_base(table: str, seed: int, folder: Path) -> PlannedRun:
    """Plan a base model."""
    own = {"run.name": f"{table}-{seed}-{BASE}", "run.seed": seed, "train.tokens": BASE_TOKENS}
    return plan_run(folder, {**SETTINGS, "data.corpus.seed": seed, **own, **PLANS[table].arms[BASE]})


def plan_branches(table: str, seed: int, base: PlannedRun, folder: Path) -> list[PlannedRun]:
    """Plan the branches of a base model, whose run folder they read."""
    runs = []
    for arm, settings in PLANS[table].arms.items():
        if arm != BASE:
            own = branch_settings(f"{table}-{seed}-{arm}", seed, base, BRANCH_TOKENS)
            runs.append(plan_run(folder, {**SETTINGS, "data.corpus.seed": seed, **own, **settings}))
    return runs
