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
the training window. Texts are encoded and cut as the harness's own class hf does it (eval/harness/model.py).
Answers are greedy; tasks that sample are refused. Needs the extra: pip install -e '.[harness]'.

Prints a table, and adds a line for each task, metric and filter to harness.jsonl in eval/ of the run folder
(runs/harness-NAME for a Hugging Face folder) or FOLDER: eval/harness/results.py explains the intervals, `longest` is
the longest text that was read, `cut` counts contexts that were too long, `seconds` are those of the command.
harness-cases/ holds every test with its answer and score, and, for each of --tasks, the harness's own results as JSON.
Finished requests are kept there at once, in the harness's own cache, so that the same command never runs them again,
and continues after Ctrl-C (exit status 75) or a crash.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from eval.engine.command import Form, Request, run
from eval.engine.methods import PREFIX
from eval.engine.rows import Found, Results, Row, shortened
from eval.engine.subject import SUBJECT, Subject, open_subject, result_folder
from eval.harness.model import harness_model
from eval.harness.options import HarnessOptions
from eval.harness.results import rows_of, table, tests_of
from eval.harness.tasks import definition, evaluate, load_tasks, task_manager
from lab.command import start
from lab.files import write_json, writing
from lab.source import named

KIND = "harness"
CASES = f"{KIND}-cases"
READ_WITH = (*SUBJECT, "length", "truncate", "max_gen_toks", "chat")  # determine, with the request, its outcome
NAMED_BY = (*READ_WITH, "protocol", "asked", "definition", "num_fewshot", "limit", "seed", "task", "metric", "filter")


def measure(request: Request) -> Found:
    """Run the tasks, write their scores, and return the table.

    Raises: LabError; KeyboardInterrupt.
    """
    options: HarnessOptions = request.options
    manager, subject = task_manager(options), open_subject(request)
    loaded, model = load_tasks(manager, options), harness_model(subject, named(request.model), options)
    about = describe(subject, options, model.max_length)
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    cache = cells.path.parent / CASES / f"requests-{shortened(json.dumps([about[key] for key in READ_WITH]))}"
    with writing(f"-o {cells.path.parent}", "folder"):
        cache.parent.mkdir(exist_ok=True)
    rows: list[Row] = []
    for name, tasks in loaded.items():
        started = time.perf_counter()
        results = evaluate(model, manager, name, tasks, cache, options)
        asked = {"asked": name, "definition": definition(manager, name, results["samples"])}
        rows += record(results, {**about, **asked, "seconds": round(time.perf_counter() - started, 3)}, cells)
    return Found("\n".join([table(rows), *notes(request, subject, rows)]), rows, cells.path)


def describe(subject: Subject, options: HarnessOptions, length: int) -> Row:
    """Collect what all rows share: the model, the harness and the options."""
    shared = {name: getattr(options, name) for name in ("num_fewshot", "limit", "truncate", "max_gen_toks", "seed")}
    about = {"protocol": f"lm-eval-{version('lm_eval')}", "length": length, "chat": options.apply_chat_template}
    return {**subject.row, **about, **shared}


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
    refused = {"--text": "tasks bring their own texts", "--plot": "scores have no picture, eval.compare makes a table"}
    return run("eval.harness", __doc__, Form(options=HarnessOptions, refused=refused), measure, arguments)


if __name__ == "__main__":
    start(main)
