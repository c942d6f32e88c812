"""Run tasks of lm-evaluation-harness (LongBench, MMLU, GSM8K, HumanEval, your own) on a model of the lab.

    probe-lab harness MODEL --tasks NAME,NAME [--option=value ...] [-o FOLDER]

Tasks, tags and groups are the harness's, or those of the YAML files in a folder of yours:

    probe-lab harness models/Llama-3.1-8B --tasks hellaswag,mmlu,gsm8k --num_fewshot 5
    probe-lab harness models/Llama-3.1-8B --tasks longbench --max_length 32768 --truncate middle
    probe-lab harness models/Llama-3.1-8B --tasks longbench --distance string:shift=43008,window=128
    probe-lab harness models/Llama-3.1-8B --tasks humaneval --confirm_run_unsafe_code
    probe-lab harness models/Llama-3.1-8B-Instruct --tasks gsm8k --apply_chat_template

Where --distance names no parameters, string, dca, self_extend and rerope take those of lab/positions/resolution.py,
from the training window. The harness's own class hf encodes, scores and answers; eval/harness/model.py lists what
differs.
Answers are greedy; tasks that sample are rejected. Needs the extra: pip install -e '.[harness]'.

Prints a table. harness-NAME-HASH.jsonl gets a line for each task, metric and filter. The 95% interval of a number is
exact where every document scores 0 or 1 and the number is their mean. Else it is the harness's standard error times the
quantile of Student's t. A note counts the contexts that were too long.

The file has every test too, with its answer and score. harness-NAME-HASH_rank0.db, the harness's own cache, has the
finished requests. The same command never runs them again, and continues after Ctrl-C (exit status 75).
"""

import hashlib
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from numbers import Real
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from scipy.special import stdtrit

from eval.engine import cases, run
from eval.engine.text import limits, to_jsonable
from eval.harness.model import Truncate, harness_model
from lab.core import schema
from lab.core.command import start
from lab.core.errors import ConfigError, MissingPackage, first_line
from lab.core.types import CONFIDENCE, Row
from lab.probe.limits import share_limits
from lab.results.store import short_hash
from lab.runs.source import resolve_path


class HarnessOptions(cases.ChatOptions):
    """Options of this command."""

    tasks: tuple[str, ...]
    """Names of tasks, tags or groups, with commas between them."""
    include_path: schema.PathText | None = None
    """Folder with YAML files of tasks of your own; Python functions that they name are run."""
    limit: schema.Positive | None = None
    """Number of documents of each task, from the first; default: all."""
    num_fewshot: schema.NonNegative | None = None
    """Examples before each question; default: the number that the task sets."""
    max_length: Annotated[schema.Length, Ge(2)] | None = None
    """Most tokens of a text, answer included, beyond which contexts are cut; default: the training window."""
    truncate: Truncate = "left"
    """Part that a long context loses: its beginning, or its middle, as LongBench and InfiniteBench cut it."""
    confirm_run_unsafe_code: bool = False
    """Run programs that the model writes, as HumanEval does; do this in a sandbox alone."""


class Harness(run.Measure):
    """Scores of the harness's tasks, which it measures all at once."""

    kind = "harness"
    options: HarnessOptions
    named_by = ("protocol", "definition", "num_fewshot", "limit", "seed", "task", "metric", "filter")
    columns = (
        *((name, name, "") for name in ("task", "metric", "filter", "fewshot")),
        *(("n", "n", ","), ("score", "score", ".4f"), ("95% interval", lambda row: limits(row, ".4f"), "")),
    )

    def prepare(self) -> None:
        """Build the harness's model, and load all tasks and their data before time is spent on any of them."""
        options = self.options
        if options.confirm_run_unsafe_code:
            # The metric that runs programs reads its consent from the environment alone.
            os.environ["HF_ALLOW_CODE_EVAL"] = "1"
        with redirect_stdout(sys.stderr):
            self.manager, self.tasks = load_tasks(options.tasks, options.include_path)
        self.model = harness_model(self.subject, resolve_path(self.request.model), options)

    def rows(self) -> Iterator[Row]:
        """Run the tasks by the harness, whose output goes to stderr, and add the rows that are new or have changed."""
        from lm_eval import simple_evaluate

        options = self.options
        started = time.perf_counter()
        shared = {
            **self.subject.row,
            "protocol": f"lm-eval-{version('lm_eval')}",
            "length": self.model.max_length,
            "chat": options.chat,
            "num_fewshot": options.num_fewshot,
            "limit": options.limit,
            "truncate": options.truncate,
            "seed": options.seed,
        }
        store = self.open_store(**{name: shared[name] for name in ("length", "truncate", "chat")})
        try:
            with redirect_stdout(sys.stderr):
                scores: Row = simple_evaluate(
                    model=self.model,
                    tasks=self.tasks,
                    task_manager=self.manager,
                    use_cache=str(store.path.with_suffix("")),  # finished requests
                    bootstrap_iters=1000,
                    random_seed=options.seed,
                    numpy_random_seed=options.seed,
                    torch_random_seed=options.seed,
                    fewshot_random_seed=options.seed,
                    apply_chat_template=bool(options.chat),
                    confirm_run_unsafe_code=options.confirm_run_unsafe_code,
                    num_fewshot=options.num_fewshot,
                    limit=options.limit,
                )
        except (AssertionError, ImportError, ValueError) as error:
            # The harness rejects settings by these errors.
            raise ConfigError(f"--tasks={','.join(options.tasks)}: {first_line(error)}") from error
        seconds = round(time.perf_counter() - started, 3)
        for numbers in read_scores(scores):
            row = {**shared, **numbers, "seconds": seconds}
            before = store.find(row)
            if before is None or before["score"] != row["score"]:
                # The metrics of a task and filter share their tests.
                cell = f"{row['task']} {row['filter']}, {short_hash(store.name({**row, 'metric': None}))}"
                tests = list_samples(scores, row["task"], row["filter"])
                row["cell"] = cell
                store.append([*({"cell": cell, **test} for test in tests), row])
            yield row

    def text(self, rows: Sequence[Row]) -> str:
        """Write a table, and the contexts that were cut."""
        head = f"{rows[0]['protocol']}, texts of at most {rows[0]['length']:,} tokens"
        lines = [head, "", super().text(rows)]
        if self.model.cut:
            part = {"left": "beginning", "middle": "middle"}[self.options.truncate]
            lines.append(
                f"{self.model.cut:,} contexts were longer than the window and lost their {part}; raise --max_length"
            )
        return "\n".join(lines)


def load_tasks(names: Sequence[str], folder: str | None) -> tuple[Any, list[Any]]:
    """Load tasks, tags or groups with their data, from the user's folder alone if it has them all."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingPackage("lm-eval", "probe-lab harness", "harness") from error

    # The harness's own tasks take ten seconds to list: they are left for names that the user's folder lacks.
    for defaults in (False, True):
        manager = TaskManager(include_path=folder, include_defaults=defaults)
        try:
            loaded = [manager.load([name]) for name in names]
            break
        except Exception as error:
            # Task files contain code, which may raise anything.
            if defaults:
                raise ConfigError(
                    f"--tasks={','.join(names)}: the harness cannot load it ({type(error).__name__}: "
                    f"{first_line(error)}); check its name and files"
                ) from error
    tasks: list[Any] = []
    for name, parts in zip(names, loaded, strict=True):
        # A group is one object, which averages over its tasks; the tasks of a tag are independent.
        if name in parts["groups"]:
            tasks.append(parts["groups"][name])
        else:
            tasks += parts["tasks"].values()
    return manager, tasks


def read_scores(results: Row) -> Iterator[Row]:
    """List the numbers of all tasks and groups."""
    for task, numbers in results["results"].items():
        # A task may be in several groups of a group.
        below = list(dict.fromkeys(list_tasks(results, task)))
        configs = {name: results["configs"][name] for name in below}
        # Tasks are defined by their settings, the source of their functions, and their documents.
        defined = [json.dumps(configs, sort_keys=True, default=write_source)]
        n = 0
        for name in below:
            n += results["n-samples"][name]["effective"]
            for test in results["samples"][name]:
                defined.append(test["doc_hash"] + test["target_hash"])
        shared = {
            "task": task,
            "task_version": results["versions"].get(task),
            "fewshot": results["n-shot"].get(task),
            "n": n,
            "definition": hashlib.sha256("\n".join(defined).encode()).hexdigest()[:16],
        }
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            scores = [test["scores"].get(metric) for test in list_samples(results, task, filtered)]
            yield {
                **shared,
                "metric": metric,
                "filter": filtered,
                "score": to_number(score),
                **limit_score(to_number(score), scores, to_number(numbers.get(f"{metric}_stderr,{filtered}")), n),
            }


def write_source(value: object) -> str:
    """Write a function by its source, as its address differs in every call, and other values as text."""
    return inspect.getsource(value) if inspect.isfunction(value) else str(value)


def list_tasks(results: Row, name: str) -> Iterator[str]:
    """List the tasks of a group, and of the groups in it; of a task, itself."""
    if name in results["n-samples"]:
        yield name
    for part in results.get("group_subtasks", {}).get(name, ()):
        yield from list_tasks(results, part)


def list_samples(results: Row, task: str, filtered: str) -> list[Row]:
    """List every test of a task and filter: its prompt's hash, expected and actual answer, and scores."""
    tests = []
    for sample in results["samples"].get(task, ()):
        if sample["filter"] != filtered:
            continue
        test = {
            "test": sample["doc_id"],
            "prompt_hash": sample["prompt_hash"][:16],
            "expected": str(sample["target"]),
            "answer": str(sample["filtered_resps"]),
            "scores": {metric: to_jsonable(sample[metric]) for metric in sample["metrics"]},
        }
        tests.append(test)
    return tests


def limit_score(score: float | None, scores: Sequence[Any], stderr: float | None, n: int) -> Row:
    """Return the limits of a number from what `n` documents score, and their kind: exact, or t.

    Example:
        >>> limit_score(0.5, [], stderr=0.1, n=11)  # 2.228 standard errors
        {'low': 0.277..., 'high': 0.722..., 'confidence': 0.95, 'interval': 't', 'stderr': 0.1}
    """
    low = high = kind = None
    is_share = bool(scores) and set(map(str, scores)) <= {"0.0", "1.0"}
    if is_share and score is not None and math.isclose(np.mean(scores), score):
        (low, high), kind = share_limits(round(sum(scores)), len(scores), CONFIDENCE), "exact"
    elif score is not None and stderr is not None:
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stderr
        low, high, kind = score - half, score + half, "t"
    return {"low": low, "high": high, "confidence": CONFIDENCE, "interval": kind, "stderr": stderr}


def to_number(value: object) -> float | None:
    """Return a finite number; None for anything else, as N/A."""
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


main = Harness.main


if __name__ == "__main__":
    start(main)
