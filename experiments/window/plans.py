"""The conditions of docs/findings.md as tables: base models, their continued-training branches, and their tests.

A base model is trained with a corpus, first weights and prompts of its own seed. Its branches start from its weights
with fresh moments of AdamW, in an order of the text that they share, with a schedule of their own. All compute in
bfloat16, attention in float32, with one thread.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.window.texts import MASKED, MATCHED
from lab.sweep.planning import PlannedRun, plan_command

Config = dict[str, Any]
START = (sys.executable, "-m", "lab.fit", "configs/cpu_short.yaml")
COMMON: Config = {  # the tests of an evaluation follow, so that training's own are few
    "train.precision": "bf16",
    "train.threads": 1,
    "probe.every_tokens": None,
    "probe.distance_tests": 0,
    "probe.distance_points": None,
    "probe.tests": 10,
    "probe.max_length": 192,
    "probe.step": 192,
}
BRANCH_SEED = 100  # added to the seed of a base model: the order of the text that its branches share
PREDICTIONS = Path("experiments/window/predictions.md")  # of S2
PREDICTIONS_OF_W = Path("experiments/window/predictions_windows.md")
MORE_TOKENS = 2_000_000  # by which a base model is continued until it has acquired retrieval
MOST_BASES = 4  # of a seed, the first one and its continuations
LONG_TEXT: Config = {  # questions at all distances that a document has
    "data.corpus.documents": 40_000,
    "data.corpus.median_tokens": 100,
    "data.corpus.log_std": 1.0,
    "data.corpus.section_tokens": 4096,
    "train.batch_tokens": 1536,
    "train.micro_batch_tokens": 1536,
}
LARGER: Config = {"model.d_model": 256, "model.n_heads": 8, "model.n_kv_heads": 8, "model.d_ff": 688}
LONGER_WINDOWS = (192, 384, 768)
WINDOWS = (128, *LONGER_WINDOWS)
# One list for all branches of W, of which each takes what its window has room for.
PROMPTS = (128, 192, 256, 384, 512, 768)
DISTANCES = (24, 48, 72, 96, 112, 144, 176, 224, 272, 320, 368, 432, 496, 560, 624, 688, 752)
ROOM = 16  # tokens of a prompt beyond the farthest distance
TESTS = 24  # of each cell
S2_DISTANCES = (24, 36, 48, 60, 72, 84, 96, 108, 120, 132, 144, 156, 168, 179)
S2_TESTS = 64


class Stage(NamedTuple):
    """Branches that are trained and recorded together, seed after seed, from base models that stages may share.

    Seeds are taken in order until `n_seeds` have been used. If `needs_retrieval`, a base model that has not acquired
    retrieval is continued for MORE_TOKENS, up to MOST_BASES; a seed whose last one has not is recorded, not used.
    """

    bases: str
    base: Config
    base_tokens: int
    branches: dict[str, Config]
    n_seeds: int
    seeds: range
    predictions: Path
    tokens: int = 1_000_000
    needs_retrieval: bool = False


def mask_far(within: int, share_masked: float = 1.0) -> Config:
    """Mask the loss of a share of the targets whose evidence is beyond a distance."""
    return {"weights": {"by": "evidence", "keep": [[0, within]], "fraction": share_masked}}


def windows(
    tokens: int, n_seeds: int, lengths: Sequence[int] = WINDOWS, bases: str = "W", base: Config | None = None
) -> Stage:
    """Plan branches that differ in their window."""
    base = base or {}
    branches = {str(length): {"data.window": length, **base} for length in lengths}
    return Stage(bases, base, 4_000_000, branches, n_seeds, range(10, 20), PREDICTIONS_OF_W, tokens, True)


def demands(branches: dict[str, Config]) -> Stage:
    """Plan branches of S2, which differ in position frequency and in retrieval demand."""
    return Stage("S2", {"text": "base", **FAR_MASKED}, 3_000_000, branches, 5, range(5), PREDICTIONS)


FAR_MASKED = mask_far(64)
STAGES = {  # in the order in which they are run
    # `text` is one of the corpora of experiments.window.texts.
    "S2": demands({"A": {"text": "A", **mask_far(MATCHED, MASKED)}, "B": {"text": "B"}}),
    "S2_crossed": demands(
        {
            "A unmasked": {"text": "A"},
            "A tenth beyond 64": {"text": "A", **mask_far(64, 0.9)},
            "A none beyond 64": {"text": "A", **FAR_MASKED},
            "B none beyond 64": {"text": "B", **FAR_MASKED},
        }
    ),
    "W_1M": windows(1_000_000, 5),
    "W_4M": windows(4_000_000, 3, LONGER_WINDOWS),
    "W_2M": windows(2_000_000, 3, LONGER_WINDOWS),
    "W_larger": windows(1_000_000, 3, LONGER_WINDOWS, "W_larger", LARGER),
}


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
    settings = {"start.path": str(base.path), "train.tokens": MORE_TOKENS, **stage.base}
    return plan_run(f"{stage.bases}-{seed}-base_{number}", seed + BRANCH_SEED * number, settings, seed, folder)


def plan_branches(name: str, seed: int, base: PlannedRun, folder: Path) -> list[PlannedRun]:
    """Plan the branches of a base model, whose run folder they read."""
    stage = STAGES[name]
    runs = []
    for branch, settings in stage.branches.items():
        own = {"start.path": str(base.path), "train.tokens": stage.tokens, **settings}
        runs.append(plan_run(f"{name}-{seed}-{branch}", seed + BRANCH_SEED, own, seed, folder))
    return runs


def plan_run(name: str, run_seed: int, settings: Config, seed: int, folder: Path) -> PlannedRun:
    """Plan a run on the generated documents of a seed, or on its text that is read from a file."""
    data: Config = {**LONG_TEXT, "data.corpus.seed": seed}
    if "text" in settings:
        place = text_folder(folder, seed)
        data = {
            "data.corpus": {"name": "text", "path": str(place / f"{settings['text']}.jsonl")},
            "data.tokenizer": {"method": "file", "path": str(place), "eos": "<eos>"},
            "probe.haystack": str(place / "haystack.txt"),
            "probe.answer_budget": 64,  # four numbers of six digits
        }
    own = {"run.name": name.replace(" ", "_"), "run.folder": str(folder), "run.seed": run_seed, **settings}
    own.pop("text", None)
    return plan_command(START, {**COMMON, **data, **own}, {})


def text_folder(folder: Path, seed: int) -> Path:
    """Return the folder of the texts of S2."""
    return folder / "texts" / str(seed)


def evaluation_options(name: str, run: PlannedRun) -> list[str]:
    """Write the options of eval.distance for a run: prompts of the seed's own, and of W all methods and lengths."""
    # Branches and continuations add multiples of BRANCH_SEED, so that all runs of a seed get the same prompts.
    seed = f"--seed={run.experiment.run.seed % BRANCH_SEED}"
    if STAGES[name].bases == "S2":
        return [format_option("distances", S2_DISTANCES), f"--tests={S2_TESTS}", "--digits=3", "--batch=64", seed]
    window = run.experiment.data.window
    methods = [f"--distance={method}" for method in methods_at(window)]
    distances = [distance for distance in DISTANCES if distance <= window - ROOM]
    prompts = [length for length in PROMPTS if length < window]
    grid = [format_option("prompts", prompts)] if prompts else []
    return [format_option("distances", distances), *grid, *methods, f"--tests={TESTS}", "--batch=24", seed]


def methods_at(window: int) -> list[str]:
    """List the distance methods under which a model of a window is tested."""
    half, third, quarter, sixth = window // 2, window // 3, window // 4, window // 6
    return [
        "plain",
        f"string:shift={third},window={sixth}",
        f"string:shift={half},window={sixth}",
        f"dca:train_len={half},chunk={third}",
        f"dca:train_len={quarter},chunk={sixth}",
    ]


def format_option(option: str, values: Sequence[int]) -> str:
    """Write an option of several numbers."""
    return f"--{option}={','.join(map(str, values))}"
