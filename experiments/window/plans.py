"""The conditions of docs/findings.md as tables: base models, their continued-training branches, and their tests.

A base model is trained with a corpus, first weights and prompts of its own seed. Its branches start from its weights
with fresh moments of AdamW, in an order of the text that they share, with a schedule of their own. All compute in
bfloat16, attention in float32, with one thread.

Branches of D and of the sizes read documents of another seed than the base model's. Stages with texts of their own (S2,
L, N and far) and the tests in natural text are at commit fbd5e937.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.config.settings import Settings
from lab.core.yaml import read_yaml
from lab.sweep.planning import PlannedRun, plan_command

BRANCH_SEED = 100  # added to the seed of a base model: the order of the text that its branches share
FRESH_SEED = 1000  # added to the seed of a base model of D: the documents of its branches, other than its own
MOST_BASES = 4  # of a seed, the first one and its continuations
DISTANCES = (24, 48, 72, 96, 112, 144, 176, 224, 272, 320, 368, 432, 496, 560, 624, 688, 752)
PLAIN, THIRD, HALF, DCA, DCA_QUARTER = METHODS = ("plain", "STRING 1/3", "STRING 1/2", "DCA 1/2", "DCA 1/4")
METHODS_OF_D = (PLAIN, HALF, DCA, DCA_QUARTER)
METHODS_OF_N = (PLAIN, DCA_QUARTER)


class StagePlan(NamedTuple):
    """Branches that are trained and recorded together, seed after seed, from base models that stages may share.

    Seeds are taken in order until `n_seeds` have been used. If `needs_retrieval`, a base model that has not acquired
    retrieval is continued for 2,000,000 tokens, up to MOST_BASES; a seed whose last one has not is recorded, not used.
    Branches are tested under `methods`, in prompts that fill the window and in those of `prompts` by branch (default:
    six lengths for each).
    """

    bases: str
    base: Settings
    base_tokens: int
    branches: dict[str, Settings]
    n_seeds: int
    seeds: range
    predictions: Path
    tokens: int = 1_000_000
    needs_retrieval: bool = False
    has_fresh_documents: bool = False
    methods: Sequence[str] = METHODS
    prompts: dict[str, list[int]] | None = None


PLAN = read_yaml(Path(__file__).with_name("stages.yaml"))


def resolve_settings(settings: Settings) -> Settings:
    """Put the groups that `use` names before the settings themselves."""
    own = dict(settings)
    out: Settings = {}
    for name in own.pop("use", ()):
        out |= PLAN["groups"][name]
    return out | own


def read_stage(values: Settings) -> StagePlan:
    """Read a stage of the file."""
    own = {
        "base": resolve_settings(values["base"]),
        "branches": {name: resolve_settings(settings) for name, settings in values["branches"].items()},
        "seeds": range(*values["seeds"]),
        "predictions": Path(values["predictions"]),
    }
    return StagePlan(**{**values, **own})


STAGES = {name: read_stage(values) for name, values in PLAN["stages"].items()}  # in the order in which they are run


def is_first(name: str) -> bool:
    """Return whether a stage is the first of those that share its base models, which it also records."""
    return next(other for other, stage in STAGES.items() if stage.bases == STAGES[name].bases) == name


def plan_base(name: str, seed: int, folder: Path) -> PlannedRun:
    """Plan the base model of a stage and seed."""
    stage = STAGES[name]
    settings = {"train.tokens": stage.base_tokens, **stage.base}
    return plan_run(f"{stage.bases}-{seed}-base", seed, settings, seed, folder)


def plan_continued(name: str, seed: int, base: PlannedRun, number: int, folder: Path) -> PlannedRun:
    """Plan the continuation of a base model, whose run folder it reads."""
    stage = STAGES[name]
    settings = {"start.path": str(base.path), "train.tokens": 2_000_000, **stage.base}
    return plan_run(f"{stage.bases}-{seed}-base_{number}", seed + BRANCH_SEED * number, settings, seed, folder)


def plan_branches(name: str, seed: int, base: PlannedRun, folder: Path) -> list[PlannedRun]:
    """Plan the branches of a base model, whose run folder they read."""
    stage = STAGES[name]
    runs = []
    for branch, settings in stage.branches.items():
        own: Settings = {"start.path": str(base.path), "train.tokens": stage.tokens, **settings}
        if stage.has_fresh_documents:
            own["data.tokenizer"] = {"method": "file", "path": str(base.path), "eos": "<eos>"}
            own["data.corpus.seed"] = seed + FRESH_SEED
        runs.append(plan_run(f"{name}-{seed}-{branch}", seed + BRANCH_SEED, own, seed, folder))
    return runs


def plan_run(name: str, run_seed: int, settings: Settings, seed: int, folder: Path) -> PlannedRun:
    """Plan a run on the generated documents of a seed."""
    groups = PLAN["groups"]
    own = {"run.name": name.replace(" ", "_"), "run.folder": str(folder), "run.seed": run_seed}
    settings = {**groups["common"], **groups["long_text"], "data.corpus.seed": seed, **own, **settings}
    return plan_command(["lab.fit", "configs/cpu_short.yaml"], settings, {})


def evaluation_options(name: str, run: PlannedRun) -> list[str]:
    """Write the options of eval.distance for a run: prompts of the seed's own."""
    stage, window = STAGES[name], run.experiment.data.window
    # The prompt has 16 tokens beyond the largest distance.
    options = [format_option("distances", [distance for distance in DISTANCES if distance <= window - 16])]
    lengths = [128, 192, 256, 384, 512, 768]
    if stage.prompts is not None:
        lengths = stage.prompts.get(run.path.name.split("-", 2)[2].replace("_", " "), [])
    if prompts := [length for length in lengths if length < window]:
        options.append(format_option("prompts", prompts))
    options += [f"--distance={methods_at(window)[method]}" for method in stage.methods]
    # Branches and continuations add multiples of BRANCH_SEED, so that all runs of a seed get the same prompts.
    return [*options, "--tests=24", "--digits=3", "--batch=24", f"--seed={run.experiment.run.seed % BRANCH_SEED}"]


def methods_at(window: int) -> dict[str, str]:
    """List the distance methods under which a model of a window is tested, as the command writes them."""
    half, third, quarter, sixth = window // 2, window // 3, window // 4, window // 6
    return {
        PLAIN: "plain",
        THIRD: f"string:shift={third},window={sixth}",
        HALF: f"string:shift={half},window={sixth}",
        DCA: f"dca:train_len={half},chunk={third}",
        DCA_QUARTER: f"dca:train_len={quarter},chunk={sixth}",
    }


def format_option(option: str, values: Sequence[int]) -> str:
    """Write an option of several numbers."""
    return f"--{option}={','.join(map(str, values))}"
