"""The conditions of docs/findings.md as tables: base models, their continued-training branches, and their tests.

A base model is trained with a corpus, first weights and prompts of its own seed. Its branches start from its weights
with fresh moments of AdamW, in an order of the text that they share, with a schedule of their own. All compute in
bfloat16, attention in float32, with one thread.

Branches of D, L and N share base models and documents, which are of another seed than the base model's. Those whose
text is none of the generator's as it is read it from a file that experiments.window.texts writes.
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
PREDICTIONS_OF_D = Path("experiments/window/predictions_order.md")  # of D, L, N and the sizes
MORE_TOKENS = 2_000_000  # by which a base model is continued until it has acquired retrieval
MOST_BASES = 4  # of a seed, the first one and its continuations
TWO_WINDOWS: Config = {"train.batch_tokens": 1536, "train.micro_batch_tokens": 1536}  # of 768
LONG_TEXT: Config = {  # questions at all distances that a document has
    "data.corpus.documents": 40_000,
    "data.corpus.median_tokens": 100,
    "data.corpus.log_std": 1.0,
    "data.corpus.section_tokens": 4096,
    **TWO_WINDOWS,
}
FRESH_SEED = 1000  # added to the seed of a base model of D: the documents of its branches, other than its own
SHORT_TEXT: Config = {  # that of configs/cpu_short.yaml; the run's own probe shows when retrieval begins
    "data.corpus.documents": 60_000,
    "data.corpus.median_tokens": 38.4,
    "data.corpus.log_std": 0.5,
    "data.corpus.section_tokens": 192,
    "train.batch_tokens": 1024,
    "train.micro_batch_tokens": 1024,
    "probe.every_tokens": 200_000,
    "probe.distance_tests": 24,
    "probe.distance_points": 2,  # 48 tokens, a quarter of the window, and the last
    "probe.loss_tokens": 0,
    "optim.lr": 1e-3,
    "optim.min_lr": 1e-4,
}
LARGER: Config = {"model.d_model": 256, "model.n_heads": 8, "model.n_kv_heads": 8, "model.d_ff": 688}
LARGEST: Config = {
    "model.d_model": 384,
    "model.n_layers": 3,
    "model.n_heads": 12,
    "model.n_kv_heads": 12,
    "model.d_ff": 1032,
}
LONGER_WINDOWS = (192, 384, 768)
WINDOWS = (128, *LONGER_WINDOWS)
# Of each list a branch takes what its window has room for.
PROMPTS = (128, 192, 256, 384, 512, 768)
PROMPTS_OF_L = (192, 384)
DISTANCES = (24, 48, 72, 96, 112, 144, 176, 224, 272, 320, 368, 432, 496, 560, 624, 688, 752)
ROOM = 16  # tokens of a prompt beyond the farthest distance
TESTS, NATURAL_TESTS = 24, 12  # of each cell, in generated and in natural text
S2_DISTANCES = (24, 36, 48, 60, 72, 84, 96, 108, 120, 132, 144, 156, 168, 179)
S2_TESTS = 64
PLAIN, THIRD, HALF, DCA, DCA_QUARTER = METHODS = ("plain", "STRING 1/3", "STRING 1/2", "DCA 1/2", "DCA 1/4")
METHODS_OF_D: Sequence[str] = (PLAIN, HALF, DCA, DCA_QUARTER)
METHODS_OF_N: Sequence[str] = (PLAIN, DCA_QUARTER)


class Stage(NamedTuple):
    """Branches that are trained and recorded together, seed after seed, from base models that stages may share.

    Seeds are taken in order until `n_seeds` have been used. If `needs_retrieval`, a base model that has not acquired
    retrieval is continued for MORE_TOKENS, up to MOST_BASES; a seed whose last one has not is recorded, not used.
    Branches are tested under `methods`, in prompts that fill the window and in those of `prompts` by branch (default:
    PROMPTS for each), and in natural text if `has_natural_tests`.
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
    has_fresh_documents: bool = False
    methods: Sequence[str] = METHODS
    prompts: dict[str, Sequence[int]] | None = None
    has_natural_tests: bool = False


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


def ask(numbers: int, spread: str, order: str = "stated", window: int = 768, **more: Any) -> Config:
    """Set how many numbers the documents of a branch ask for, at which distances, in which order."""
    return {
        **LONG_TEXT,
        "data.corpus.documents": 10_000,
        "data.corpus.numbers": numbers,
        "data.corpus.spread": spread,
        "data.corpus.order": order,
        "data.window": window,
        "probe.required": min(2, numbers),
        **more,
    }


def read_text(text: str, window: int) -> Config:
    """Set that a branch reads a corpus of experiments.window.texts."""
    return {**TWO_WINDOWS, "text": text, "data.window": window}


def order(branches: dict[str, Config], prompts: Sequence[str] = (), methods: Sequence[str] = METHODS_OF_D) -> Stage:
    """Plan branches of D, L or N from base models of short documents; `prompts` are branches tested in shorter ones."""
    stage = Stage("short", SHORT_TEXT, 2_000_000, branches, 5, range(30, 40), PREDICTIONS_OF_D, needs_retrieval=True)
    return stage._replace(
        has_fresh_documents=True,
        methods=methods,
        prompts={branch: PROMPTS_OF_L if branch in prompts else () for branch in branches},
        has_natural_tests=True,
    )


def rate(lr: float) -> Config:
    """Set the learning rate, its end and a warm-up of 200 steps."""
    return {"optim.lr": lr, "optim.min_lr": lr / 10, "optim.warmup_steps": 200}


def sizes(size: Config, n_seeds: int, name: str) -> Stage:
    """Plan branches of a larger model, from base models of its own."""
    branches = {str(window): {**ask(4, "log-uniform", window=window), **size} for window in (192, 768)}
    stage = order(branches)
    return stage._replace(bases=name, base={**SHORT_TEXT, **size}, n_seeds=n_seeds, has_natural_tests=False)


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
    "D": order(
        {
            "4 log": ask(4, "log-uniform"),  # also the window of 768 of L
            "4 log shuffled": ask(4, "log-uniform", "shuffled"),
            "4 log reversed": ask(4, "log-uniform", "reversed"),
            "1 uniform": ask(1, "uniform"),
            "1 log": ask(1, "log-uniform"),
            "4 uniform": ask(4, "uniform"),
            "4 uniform shuffled": ask(4, "uniform", "shuffled"),
            "4 log gaps": ask(4, "log-uniform", skip={"method": "pose", "target_len": 1536}),
        },
        prompts=["4 log"],
    ),
    "L": order(
        {
            "192": ask(4, "log-uniform", window=192),
            "384": ask(4, "log-uniform", window=384),
            "384 whole": read_text("whole", 384),  # without documents that a window of 384 cuts
        },
        prompts=["384", "384 whole"],
    ),
    "N": order({str(window): read_text("natural", window) for window in LONGER_WINDOWS}, methods=METHODS_OF_N),
    "size_2M": sizes({**LARGER, **rate(1.5e-3)}, 5, "short_2M"),
    "size_6M": sizes({**LARGEST, **rate(1e-3)}, 3, "short_6M"),
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
        own: Config = {"start.path": str(base.path), "train.tokens": stage.tokens, **settings}
        if stage.has_fresh_documents:
            own["data.tokenizer"] = {"method": "file", "path": str(base.path), "eos": "<eos>"}
            if "text" not in settings:
                own["data.corpus.seed"] = seed + FRESH_SEED
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


def evaluation_options(name: str, run: PlannedRun, text: str | None = None) -> list[str]:
    """Write the options of eval.distance for a run: prompts of the seed's own, in generated or in natural text."""
    # Branches and continuations add multiples of BRANCH_SEED, so that all runs of a seed get the same prompts.
    seed = f"--seed={run.experiment.run.seed % BRANCH_SEED}"
    if STAGES[name].bases == "S2":
        return [format_option("distances", S2_DISTANCES), f"--tests={S2_TESTS}", "--digits=3", "--batch=64", seed]
    window = run.experiment.data.window
    named = methods_at(window)
    methods = [f"--distance={named[method]}" for method in (STAGES[name].methods if text is None else METHODS_OF_N)]
    distances = [distance for distance in DISTANCES if distance <= window - ROOM]
    branch = run.path.name.split("-", 2)[2].replace("_", " ")
    lengths = (STAGES[name].prompts or {}).get(branch, PROMPTS if STAGES[name].prompts is None else ())
    prompts = [length for length in lengths if length < window and text is None]
    grid = [format_option("prompts", prompts)] if prompts else []
    # Runs on a text file have no generator, whose numbers have three digits.
    sizes_of_tests = [f"--tests={TESTS if text is None else NATURAL_TESTS}", "--digits=3", "--batch=24"]
    return [format_option("distances", distances), *grid, *methods, *sizes_of_tests, seed]


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
