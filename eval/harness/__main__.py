"""Run tasks of lm-evaluation-harness (LongBench, MMLU, HellaSwag, GSM8K, HumanEval, your own) on a model of the lab.

    python -m eval.harness MODEL --tasks NAME,NAME [--option=value ...] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Tasks, tags and groups are the harness's, or those of the YAML files in a folder of yours:

    python -m eval.harness models/Llama-3.1-8B --tasks hellaswag,mmlu,gsm8k --num_fewshot 5
    python -m eval.harness models/Llama-3.1-8B --tasks longbench --max_length 32768 --truncate middle
    python -m eval.harness models/Llama-3.1-8B --tasks infinitebench --truncate middle --distance string
    python -m eval.harness models/Llama-3.1-8B --tasks longbench --distance string:shift=43008,window=128
    python -m eval.harness models/Llama-3.1-8B --tasks humaneval --confirm_run_unsafe_code
    python -m eval.harness models/Llama-3.1-8B-Instruct --tasks gsm8k --apply_chat_template
    python -m eval.harness runs/tiny_2k --tasks my_task --include_path my_tasks/ --run_own_code

Where --distance names no parameters, string, dca, self_extend and rerope take those of eval/engine/methods.py, from
the training window. The harness's own class hf encodes, scores and answers; eval/harness/model.py lists what differs.
Answers are greedy; tasks that sample are refused. Needs the extra: pip install -e '.[harness]'.

Prints a table, and adds a line for each task, metric and filter to harness.jsonl in eval/ of the run folder
(runs/harness-NAME for a Hugging Face folder) or FOLDER. The 95% interval of a number is exact where every document
scores 0 or 1 and the number is their mean. Else it is the harness's standard error times the quantile of Student's t.
`longest` is the longest text that was read, `cut` counts contexts that were too long, `seconds` are those of the
command. harness-cases/ holds every test with its answer and score, and the harness's own results as JSON. Finished
requests are kept there at once, in the harness's own cache: the same command never runs them again, and continues after
Ctrl-C (exit status 75) or a crash.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from numbers import Real
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from eval.engine.command import CellOptions, Form, Request, run
from eval.engine.methods import PREFIX
from eval.engine.rows import Found, Results, Row, limits, shortened, to_text
from eval.engine.subject import SUBJECT, Subject, open_subject, result_folder
from eval.harness.model import harness_model
from eval.harness.tasks import evaluate, load_tasks, task_manager
from lab.command import start
from lab.files import write_json, writing
from lab.probe.limits import share_limits
from lab.schema import Length, NonNegative, PathText, Positive
from lab.source import named

KIND = "harness"
CASES = f"{KIND}-cases"
CONFIDENCE = 0.95
READ_WITH = (*SUBJECT, "length", "truncate", "max_gen_toks", "chat")  # determine, with the request, its outcome
NAMED_BY = (*READ_WITH, "protocol", "asked", "definition", "num_fewshot", "limit", "seed", "task", "metric", "filter")


@dataclass(frozen=True, kw_only=True)
class HarnessOptions(CellOptions):
    """Options of this command."""

    tasks: str
    """Names of tasks, tags or groups, with commas between them."""
    include_path: PathText | None = None
    """Folder with YAML files of tasks of your own."""
    run_own_code: bool = False
    """Run the Python code (!function) that YAML files of --include_path name; read it first."""
    limit: Positive | None = None
    """Number of documents of each task, from the first; left out, all."""
    num_fewshot: NonNegative | None = None
    """Examples before each question; left out, as many as the task sets."""
    max_length: Length | None = None
    """Most tokens of a text, answer included, beyond which contexts are cut; left out, the training window."""
    truncate: Literal["left", "middle"] = "left"
    """Part that a long context loses: its beginning, or its middle, as LongBench and InfiniteBench cut it."""
    max_gen_toks: Length = 256
    """Most tokens of an answer, where a task sets none."""
    apply_chat_template: bool = False
    """Ask as in a chat, with the template of a Hugging Face folder; earlier examples become turns of it."""
    confirm_run_unsafe_code: bool = False
    """Run programs that the model writes, as HumanEval does; do this in a sandbox alone."""

    @property
    def names(self) -> list[str]:
        """The names in --tasks, each once."""
        return list(dict.fromkeys(name.strip() for name in self.tasks.split(",")))

    def rules(self) -> list[str]:
        """Refuse an empty name, and windows without a pair of tokens."""
        faults = [] if all(self.names) else [f"tasks={self.tasks}: has an empty name; take a comma out"]
        short = ["max_length=1: must be >= 2, a token predicts the next; raise it"]
        return faults + (short if self.max_length == 1 else [])


def measure(request: Request) -> Found:
    """Run the tasks, write their scores, and return the table.

    Raises: LabError; KeyboardInterrupt.
    """
    options: HarnessOptions = request.options
    manager = task_manager(options.names, options.include_path, run_own_code=options.run_own_code)
    subject = open_subject(request)
    loaded = load_tasks(manager, options.names, run_unsafe_code=options.confirm_run_unsafe_code)
    window = options.max_length or subject.model.train_len
    model = harness_model(
        subject,
        named(request.model),
        length=window,
        truncate=options.truncate,
        budget=options.max_gen_toks,
        batch=options.rows(window or 1),
        chat=options.apply_chat_template,
    )
    about = {**subject.row, "protocol": f"lm-eval-{version('lm_eval')}", "length": model.max_length}
    about |= {"chat": options.apply_chat_template, "num_fewshot": options.num_fewshot, "limit": options.limit}
    about |= {"truncate": options.truncate, "max_gen_toks": options.max_gen_toks, "seed": options.seed}
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    cache = cells.path.parent / CASES / f"requests-{shortened(json.dumps([about[key] for key in READ_WITH]))}"
    with writing(f"-o {cells.path.parent}", "folder"):
        cache.parent.mkdir(exist_ok=True)
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    asked = ("confirm_run_unsafe_code", "apply_chat_template", "num_fewshot", "limit")
    settings = {**dict.fromkeys(seeds, options.seed), **{name: getattr(options, name) for name in asked}}
    rows: list[Row] = []
    for name, tasks in loaded.items():
        started = time.perf_counter()
        results = evaluate(model, manager, name, tasks, cache, **settings)
        results["reads"] = {}
        for task, tests in results["samples"].items():
            every = [pair for test in tests for pair in zip(test["arguments"], test["resps"], strict=False)]
            found = {
                json.dumps(arguments, default=str): read(model, arguments, answers) for arguments, answers in every
            }
            results["reads"][task] = list(found.values())  # each request once
        asked_for = {"asked": name, "definition": definition(results)}
        rows += record(results, {**about, **asked_for, "seconds": round(time.perf_counter() - started, 3)}, cells)
    return Found("\n".join([table(rows), *notes(request, subject, rows)]), rows, cells.path)


def definition(results: Mapping[str, Any]) -> str:
    """Hash what defines the tasks: their settings, the source of their functions, and their documents."""
    whole = [json.dumps(results["configs"], sort_keys=True, default=str)]
    whole += [test["doc_hash"] + test["target_hash"] for tests in results["samples"].values() for test in tests]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:16]


def read(model: Any, arguments: Sequence[Any], answers: Any) -> tuple[int, bool]:
    """Count the tokens read for one request, an answer's included, and tell whether its context was cut."""
    from lm_eval.models.utils import normalize_gen_kwargs

    if len(arguments) == 1:  # a text
        n_tokens = len(model.tok_encode(arguments[0], add_special_tokens=False))
        return min(n_tokens, model.max_length), False
    if isinstance(arguments[1], str):
        before, after = model._encode_pair(*arguments) if arguments[0] else ([0], model.tok_encode(arguments[1]))
        n_tokens, room = len(before) + len(after) - 1, model.max_length
        return min(n_tokens, room), n_tokens > room
    n_tokens = len(model.tok_encode(arguments[0]))
    budget = normalize_gen_kwargs(dict(arguments[1]), model.max_gen_toks)["max_gen_toks"]
    answer = answers[0] if isinstance(answers, list | tuple) else answers
    n_answer = len(model.tok_encode(str(answer), add_special_tokens=False))  # of its text, without what ended it
    room = model.max_length - budget
    return min(n_tokens, room) + min(n_answer, budget), n_tokens > room


def record(results: dict[str, Any], asked: Row, cells: Results) -> list[Row]:
    """Write the harness's results of a name, and its rows and tests unless they exist already.

    Raises: ConfigError where a file cannot be written.
    """
    digest, rows = cells.digest(asked), [{**asked, **row} for row in rows_of(results)]
    for row in rows:
        known = cells.find(row)
        if known is None or known["score"] != row["score"]:
            tests = tests_of(results, row["task"], row["filter"])
            cells.add(row, (f"{CASES}/{row['task']}-{row['filter']}-{digest}.jsonl", tests) if tests else None)
    whole = {key: value for key, value in results.items() if key not in ("samples", "reads")}
    with writing(f"-o {cells.path.parent}", "folder"):
        file = cells.path.parent / CASES / f"{asked['asked']}-{digest}.json"
        write_json(file, json.loads(json.dumps(whole, default=str)))
    return rows


def rows_of(results: Mapping[str, Any]) -> Iterator[Row]:
    """List the numbers of all tasks and groups."""
    for task, numbers in results["results"].items():
        below = dict.fromkeys(tasks_of(results, task))
        own = [each for name in below for each in results["reads"][name]]
        n = sum(results["n-samples"][name]["effective"] for name in below)
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            each = [test["scores"].get(metric) for test in tests_of(results, task, filtered)]
            yield {
                "task": task,
                "task_version": results["versions"].get(task),
                "metric": metric,
                "filter": filtered,
                "higher_is_better": results["higher_is_better"].get(task, {}).get(metric),
                "fewshot": results["n-shot"].get(task),
                "n": n,
                "score": as_number(score),
                **interval(as_number(score), each, as_number(numbers.get(f"{metric}_stderr,{filtered}")), n),
                "longest": max((tokens for tokens, _ in own), default=0),
                "cut": sum(cut for _, cut in own),
                "requests": len(own),
            }


def tasks_of(results: Mapping[str, Any], name: str) -> Iterator[str]:
    """List the tasks of a group, and of the groups in it; of a task, itself."""
    if name in results["n-samples"]:
        yield name
    for part in results.get("group_subtasks", {}).get(name, ()):
        yield from tasks_of(results, part)


def tests_of(results: Mapping[str, Any], task: str, filtered: str) -> list[Row]:
    """List every test of a task and filter: its prompt's hash, expected and actual answer, and scores."""
    return [
        {
            "test": sample["doc_id"],
            "prompt_hash": sample["prompt_hash"][:16],
            "expected": str(sample["target"]),
            "answer": str(sample["filtered_resps"]),
            "scores": {metric: as_number(sample[metric]) for metric in sample["metrics"]},
        }
        for sample in results["samples"].get(task, ())
        if sample["filter"] == filtered
    ]


def interval(score: float | None, each: Sequence[Any], stderr: float | None, n: int) -> Row:
    """Return the limits of a number from what `n` documents score, and their kind: exact, or t.

    Example:
        >>> interval(0.5, [], stderr=0.1, n=11)  # 2.228 standard errors
        {'low': 0.277..., 'high': 0.722..., 'confidence': 0.95, 'interval': 't', 'stderr': 0.1}
    """
    low, high, kind = None, None, None
    if each and score is not None and set(map(str, each)) <= {"0.0", "1.0"} and math.isclose(np.mean(each), score):
        (low, high), kind = share_limits(round(sum(each)), len(each), CONFIDENCE), "exact"
    elif score is not None and stderr is not None:
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stderr
        low, high, kind = score - half, score + half, "t"
    return {"low": low, "high": high, "confidence": CONFIDENCE, "interval": kind, "stderr": stderr}


def as_number(value: Any) -> Any:
    """Return a finite number, or a pair of them, as JSON holds it; None for anything else, as N/A."""
    if isinstance(value, tuple | list):
        return [as_number(part) for part in value]
    return float(value) if isinstance(value, Real | np.bool_) and math.isfinite(value) else None


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table."""
    first, names = rows[0], {"fewshot": "shots", "n": "n", "score": "score"}
    shown = [
        {key: row[key] for key in ("task", "metric", "filter")}
        | {name: row[key] for key, name in names.items()}
        | {"95% interval": limits(row, ".4f"), "longest": row["longest"]}
        for row in rows
    ]
    head = f"{first['model']}: {first['method']}; {first['protocol']}, texts of at most {first['length']:,} tokens"
    return f"{head}\n\n{to_text(shown, {'n': ',', 'score': '.4f', 'longest': ','})}"


def notes(request: Request, subject: Subject, rows: Sequence[Row]) -> Iterator[str]:
    """List notes on the scores: contexts that were cut, a distance method without effect."""
    for task, row in {row["task"]: row for row in rows if row["cut"]}.items():
        contexts = f"{row['cut']:,} of {row['requests']:,} contexts"
        part = {"left": "beginning", "middle": "middle"}[row["truncate"]]
        yield f"{task}: {contexts} were longer than the window and lost their {part}; raise --max_length"
    longest = max((row["longest"] for row in rows), default=0)
    asked = any(key.startswith(PREFIX) for key in request.overrides)
    faults = subject.model.decoder.distance.length_faults(longest) if asked and longest else []
    yield from (f"no text was long enough for the distance method to change anything: {fault}" for fault in faults)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.harness", __doc__, Form(options=HarnessOptions, lacks=("--plot",)), measure, arguments)


if __name__ == "__main__":
    start(main)
