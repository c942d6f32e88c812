"""Run tasks of lm-evaluation-harness (LongBench, MMLU, HellaSwag, GSM8K, HumanEval, your own) on a model of the lab.

    python -m eval.harness MODEL --tasks NAME,NAME [--option=value ...] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Tasks, tags and groups are the harness's, or those of the YAML files in a folder of yours:

    python -m eval.harness models/Llama-3.1-8B --tasks hellaswag,mmlu,gsm8k --num_fewshot 5
    python -m eval.harness models/Llama-3.1-8B --tasks longbench --max_length 32768 --distance string --shift 43690
    python -m eval.harness runs/tiny_2k --tasks my_task --include_path my_tasks/ --limit 100

--distance NAME is short for --position.distance.method=NAME, and that method's parameters follow under their own names.
eval/harness_scoring.py says how requests are encoded, cut and scored. Answers are greedy; tasks that sample are
refused, and chat templates are not applied. Needs the extra: pip install 'probe-lab[harness]'.

Prints a table, and adds a line for each task, metric and filter to harness.jsonl in eval/ of the run folder
(runs/harness-NAME for a Hugging Face folder) or FOLDER. harness-cases/ holds every test with what was said and how it
scored, and, for each of --tasks, the harness's own results as JSON; a name whose JSON is there is not run again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.cells import CellOptions, Cells, Row
from eval.harness_results import cases_of, rows_of, table
from eval.harness_scoring import Scorer
from eval.measuring import Request, help_text, read_request
from eval.ruler.cases import Writer
from eval.subject import SUBJECT, Subject, open_subject, result_folder
from lab.errors import ConfigError, DataError, LabError, MissingPackage
from lab.files import write_json
from lab.positions.methods import DISTANCE_METHODS
from lab.schema import NonNegative, Positive, field_docs

WRONG = 2
KIND = "harness"
MOST_TOKENS = 4096  # of a text, where the training window is not known
BUDGET = 256  # tokens of an answer where a task does not say, the harness's own number
ASKED_BY = ("protocol", "asked", "num_fewshot", "limit", "seed", "length", "max_gen_toks")
NAMED_BY = (*SUBJECT, *ASKED_BY, "task", "metric", "filter")


@dataclass(frozen=True, kw_only=True)
class HarnessOptions(CellOptions):
    """Options of this command."""

    tasks: str
    """Names of tasks, tags or groups, with commas between them."""
    include_path: str | None = None
    """Folder with YAML files of tasks of your own."""
    limit: Positive | None = None
    """Documents of each task, the first ones; left out, all."""
    num_fewshot: NonNegative | None = None
    """Examples before each question; left out, as many as the task says."""
    max_length: Positive | None = None
    """Most tokens of a text, answer included, beyond which contexts lose their beginning; left out, the training
    window."""
    max_gen_toks: Positive = BUDGET
    """Most tokens of an answer, where a task does not say."""
    run_unsafe_code: bool = False
    """Run programs that the model writes, as HumanEval does; do this in a sandbox alone."""

    @property
    def names(self) -> list[str]:
        """What --tasks lists."""
        return list(dict.fromkeys(name.strip() for name in self.tasks.split(",")))

    def rules(self) -> list[str]:
        """Refuse an empty name, and windows without a pair of tokens."""
        faults = [] if all(self.names) else [f"tasks={self.tasks}: has an empty name; take a comma out"]
        if self.max_length == 1:
            faults.append("max_length=1: must be >= 2, a token predicts the next; raise it")
        return faults


def measure(request: Request) -> str:
    """Run what is not there yet, write it down, and return the table to print.

    Raises: LabError.
    """
    options: HarnessOptions = request.options
    manager = task_manager(options)
    subject = open_subject(request)
    scorer = scorer_of(subject, options)
    cells = Cells(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    rows = []
    for name in options.names:
        asked = describe(subject, options, name)
        whole = cells.path.parent / f"{KIND}-cases" / f"{name}-{digest(asked)}.json"
        if not whole.exists():
            run_name(subject, scorer, options, manager, asked, cells, whole.stem)
        rows += [row for row in cells if all(row.get(key) == value for key, value in identity(asked).items())]
    lines = [table(rows), *notes(request, subject, rows), f"written to {cells.path}"]
    return "\n".join(lines)


def task_manager(options: HarnessOptions) -> Any:
    """Find the tasks.

    Raises: MissingPackage, ConfigError for names that are none.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingPackage("lm-eval", "eval.harness", "harness") from error
    if options.include_path is not None and not Path(options.include_path).is_dir():
        raise ConfigError(f"--include_path={options.include_path}: no such folder; give one with YAML files of tasks")
    manager = TaskManager(include_path=options.include_path, include_defaults=False)
    if not set(options.names) <= set(manager.all_tasks):  # reading the thousands that the harness has takes seconds
        manager = TaskManager(include_path=options.include_path)
    faults = []
    for name in options.names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {near[0]}?" if near else "list them with lm-eval ls tasks, or set --include_path"
            faults.append(f"--tasks={name}: no task, tag or group of this name; {hint}")
    if faults:
        raise ConfigError(*faults)
    return manager


def scorer_of(subject: Subject, options: HarnessOptions) -> Scorer:
    """Make what answers the harness's requests."""
    return Scorer(
        subject.model.decoder,
        Writer(subject.tokenizer),
        subject.generate,
        subject.computing,
        subject.stop_id,
        window_of(subject, options),
        options.max_gen_toks,
        options.rows,
        subject.device,
    )


def window_of(subject: Subject, options: HarnessOptions) -> int:
    """Choose the most tokens of a text."""
    return options.max_length or subject.model.train_len or MOST_TOKENS


def as_harness_model(scorer: Scorer) -> Any:
    """Give a scorer the harness's interface."""
    from lm_eval.api.model import LM

    class LabModel(LM):  # type: ignore[misc]
        """A decoder of the lab."""

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            with progress(requests, "log-likelihoods") as bar:
                return scorer.loglikelihoods([request.args for request in requests], bar.update)

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            with progress(requests, "texts") as bar:
                return scorer.rolling([request.args[0] for request in requests], bar.update)

        def generate_until(self, requests: list[Any]) -> list[str]:
            with progress(requests, "answers") as bar:
                return scorer.answers([request.args for request in requests], bar.update)

    return LabModel()


def progress(requests: Sequence[Any], what: str) -> Any:
    """Make a bar over requests."""
    return tqdm(total=len(requests), desc=what, unit="request")


def run_name(
    subject: Subject, scorer: Scorer, options: HarnessOptions, manager: Any, asked: Row, cells: Cells, stem: str
) -> None:
    """Run one of the names and write down its tests, its rows, and last the harness's own results.

    Raises: ConfigError for programs that may not run, DataError where a task's documents cannot be read.
    """
    scorer.cut = scorer.longest = 0
    started = time.perf_counter()
    results = evaluate(scorer, options, manager, asked["asked"])
    seconds = round(time.perf_counter() - started, 3)
    asked = {**asked, "longest": scorer.longest, "cut": scorer.cut, "seconds": seconds}
    tests = cases_of(results)
    for row in rows_of(results):
        key = (row["task"], row["filter"])
        file = f"{KIND}-cases/{row['task']}-{row['filter']}-{stem[-8:]}.jsonl"
        cells.add({**asked, **row}, (file, tests[key]) if key in tests else None)
    samples = results.pop("samples", None)
    assert samples is not None, "the harness was asked for samples"
    try:
        write_json(cells.path.parent / f"{KIND}-cases" / f"{stem}.json", json.loads(json.dumps(results, default=str)))
    except OSError as error:
        raise cells.unwritable(error) from error


def evaluate(scorer: Scorer, options: HarnessOptions, manager: Any, name: str) -> dict[str, Any]:
    """Have the harness run a task, tag or group; intervals are not its own, which draws resamples for many metrics."""
    from lm_eval import simple_evaluate

    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    try:
        results: dict[str, Any] = simple_evaluate(
            model=as_harness_model(scorer),
            tasks=[name],
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            task_manager=manager,
            bootstrap_iters=0,
            confirm_run_unsafe_code=options.run_unsafe_code,
            **dict.fromkeys(seeds, options.seed),
        )
    except LabError:
        raise
    except OSError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"--tasks={name}: its documents cannot be read ({reason}); put them where it says") from error
    except ValueError as error:
        if "unsafe" not in str(error):
            raise
        rule = "runs programs that the model writes; in a sandbox, add --run_unsafe_code=true"
        raise ConfigError(f"--tasks={name}: {rule}") from error
    return results


def describe(subject: Subject, options: HarnessOptions, name: str) -> Row:
    """Say what is run, on what, and with what."""
    from lm_eval import __version__

    return {
        **subject.row,
        "protocol": f"lm-eval-{__version__}",
        "asked": name,
        "num_fewshot": options.num_fewshot,
        "limit": options.limit,
        "length": window_of(subject, options),
        "max_gen_toks": options.max_gen_toks,
        "seed": options.seed,
    }


def identity(asked: Row) -> Row:
    """Keep what names a run of one of the names."""
    return {key: asked[key] for key in (*SUBJECT, *ASKED_BY)}


def digest(asked: Row) -> str:
    """Shorten the name of such a run for file names."""
    return hashlib.sha256(json.dumps(identity(asked), sort_keys=True).encode()).hexdigest()[:8]


def notes(request: Request, subject: Subject, rows: Sequence[Row]) -> Iterator[str]:
    """Say what a reader of the scores must know: contexts that were cut, a distance method without effect."""
    longest = max((row["longest"] for row in rows), default=0)
    cut = {row["asked"]: row["cut"] for row in rows if row["cut"]}
    for name, count in cut.items():
        yield f"{name}: {count:,} contexts were longer than the window and lost their beginning"
    asked = any(key.startswith("position.distance.") for key in request.overrides)
    faults = subject.model.decoder.distance.config.length_faults(longest) if asked and longest else []
    yield from (f"no text was long enough for the distance method to change anything: {fault}" for fault in faults)


def spell_out(words: Sequence[str]) -> list[str]:
    """Write --distance and the parameters of its method in full.

    Example:
        >>> spell_out(["runs/x", "--distance", "string", "--shift=8", "--limit", "5"])
        ['runs/x', '--position.distance.method', 'string', '--position.distance.shift=8', '--limit', '5']
    """
    parts = [word.partition("=") for word in words]
    following = [*words[1:], ""]
    named = [
        value if sign else after
        for (key, sign, value), after in zip(parts, following, strict=True)
        if key == "--distance"
    ]
    if not named:
        return list(words)
    module = DISTANCE_METHODS.get(named[0])
    own = {"distance": "method"} | {name: name for name in (field_docs(module.Config) if module else ())}
    return [
        f"--position.distance.{own[key[2:]]}{sign}{value}" if key[:2] == "--" and key[2:] in own else key + sign + value
        for key, sign, value in parts
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(help_text(str(__doc__), HarnessOptions, output="folder"))
        return 0 if words else WRONG
    try:
        request = read_request(spell_out(words), HarnessOptions, output="folder")
        if request.plots:
            raise ConfigError("--plot: there is no picture of these results; leave it out, eval.compare makes a table")
        print(measure(request))
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
