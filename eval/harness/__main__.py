"""Run tasks of lm-evaluation-harness (LongBench, MMLU, HellaSwag, GSM8K, HumanEval, your own) on a model of the lab.

    python -m eval.harness MODEL --tasks NAME,NAME [--option=value ...] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Tasks, tags and groups are the harness's, or those of the YAML files in a folder of yours:

    python -m eval.harness models/Llama-3.1-8B --tasks hellaswag,mmlu,gsm8k --num_fewshot 5
    python -m eval.harness models/Llama-3.1-8B --tasks longbench --max_length 32768
    python -m eval.harness models/Llama-3.1-8B --tasks infinitebench --distance string
    python -m eval.harness models/Llama-3.1-8B --tasks longbench --distance string --shift 43008 --window 128
    python -m eval.harness models/Llama-3.1-8B --tasks humaneval --confirm_run_unsafe_code
    python -m eval.harness models/Llama-3.1-8B-Instruct --tasks gsm8k --apply_chat_template
    python -m eval.harness runs/tiny_2k --tasks my_task --include_path my_tasks/ --limit 100

--distance NAME is short for --position.distance.method=NAME, and that method's parameters follow under their own names;
where none is given, string, dca, self_extend and rerope take those of eval.methods, from the training window. Texts are
encoded and cut as the harness's own class hf does it (eval/harness/model.py). Answers are greedy; tasks that sample are
refused. Needs the extra: pip install -e '.[harness]'.

Prints a table, and adds a line for each task, metric and filter to harness.jsonl in eval/ of the run folder
(runs/harness-NAME for a Hugging Face folder) or FOLDER: eval/harness/intervals.py explains the kinds of interval,
`longest` is the longest text that was read, `cut` counts contexts that lost their beginning, `seconds` are the model's.
harness-cases/ holds every test with its answer and score, and, for each of --tasks, the harness's own results as JSON;
a name whose JSON is there is not run again, unless its files have changed. Finished requests are kept there at once, in
the harness's own cache, so that after Ctrl-C (exit status 75) or a crash the same command continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.common.command import Request, run
from eval.common.results import Results, Row, shortened
from eval.common.subject import SUBJECT, Subject, open_subject, result_folder
from eval.harness.distance import with_parameters
from eval.harness.encoding import Encoder, ends_of
from eval.harness.model import chat_tokenizer, harness_model
from eval.harness.options import HarnessOptions, spell_out
from eval.harness.results import cases_of, rows_of, table
from eval.harness.tasks import definition, evaluate, load_tasks, task_manager
from lab.command import start
from lab.errors import ConfigError
from lab.files import write_json, writing

KIND = "harness"
CASES = f"{KIND}-cases"
MOST_TOKENS = 4096  # of a text, where the training window is not known
READ_WITH = (*SUBJECT, "length", "max_gen_toks", "chat")  # decides what a request comes to, beside itself
ASKED_BY = ("protocol", "asked", "definition", "num_fewshot", "limit", "seed", "length", "max_gen_toks", "chat")
NAMED_BY = (*SUBJECT, *ASKED_BY, "task", "metric", "filter")


def measure(request: Request) -> str:
    """Run what is not there yet, write it down, and return the table to print.

    Raises: LabError; KeyboardInterrupt with what is kept.
    """
    if request.plots:
        raise ConfigError("--plot: these results have no picture; leave it out, eval.compare makes a table")
    options: HarnessOptions = request.options
    request = with_parameters(request)
    manager = task_manager(options.names, options.include_path)
    subject = open_subject(request)
    cells = Results(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    cases = cells.path.parent / CASES
    asked = {name: describe(subject, options, name, definition(manager, name)) for name in options.names}
    files = {name: cases / f"{name}-{digest(row, (*SUBJECT, *ASKED_BY))}.json" for name, row in asked.items()}
    loaded = load_tasks(
        manager, [name for name in asked if not files[name].exists()], runs_code=options.confirm_run_unsafe_code
    )
    if loaded:
        model = model_of(request, subject)
        with writing(f"-o {cells.path.parent}", "folder"):
            cases.mkdir(exist_ok=True)
        cache = cases / f"requests-{digest(asked[options.names[0]], READ_WITH)}"
        with finished_requests(model):
            for name, tasks in loaded.items():
                results = evaluate(model, manager, name, tasks, cache, options)
                add_results(results, model, asked[name], cells, files[name])
    rows = [row for name in options.names for row in cells if is_of(row, asked[name])]
    return "\n".join([table(rows), *notes(request, subject, rows), f"written to {cells.path}"])


def model_of(request: Request, subject: Subject) -> Any:
    """Make what answers the harness's requests.

    Raises: LabError.
    """
    options: HarnessOptions = request.options
    chat = chat_tokenizer(request.model) if options.apply_chat_template else None
    begin_ids, stop_ids = ends_of(request.model, subject.tokenizer, subject.stop_id)
    encoder = Encoder(subject.tokenizer, begin_ids, stop_ids, subject.vocab_size, templated=chat is not None)
    return harness_model(subject, encoder, window_of(subject, options), options.rows, options.max_gen_toks, chat)


def window_of(subject: Subject, options: HarnessOptions) -> int:
    """Choose the most tokens of a text."""
    return options.max_length or subject.model.train_len or MOST_TOKENS


@contextmanager
def finished_requests(model: Any) -> Iterator[None]:
    """Close the cache of finished requests at the end, and on Ctrl-C count them.

    Raises: KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt as signal_:
        kept = model.cache_hook.dbdict
        if kept is None:
            raise
        about = f"{len(kept) // 2:,} finished requests are in {kept.filename}"
        raise KeyboardInterrupt(f"stopped; {about}; the same command continues") from signal_
    finally:
        if model.cache_hook.dbdict is not None:
            model.cache_hook.dbdict.close()


def add_results(results: dict[str, Any], model: Any, asked: Row, cells: Results, whole: Path) -> None:
    """Write down the tests and rows of one of the names, and last the harness's own results.

    Raises: LabError.
    """
    for row in rows_of(results, model.costs):
        tests = cases_of(results, row["task"], row["filter"])
        file = f"{CASES}/{row['task']}-{row['filter']}-{whole.stem[-8:]}.jsonl"
        cells.add({**asked, **row}, (file, tests) if tests else None)
    with writing(f"-o {cells.path.parent}", "folder"):
        del results["samples"]
        write_json(whole, json.loads(json.dumps(results, default=str)))


def describe(subject: Subject, options: HarnessOptions, name: str, defined: str) -> Row:
    """Collect what is run, on what, and with what."""
    from lm_eval import __version__

    return {
        **subject.row,
        "protocol": f"lm-eval-{__version__}",
        "asked": name,
        "definition": defined,
        "num_fewshot": options.num_fewshot,
        "limit": options.limit,
        "length": window_of(subject, options),
        "max_gen_toks": options.max_gen_toks,
        "chat": options.apply_chat_template,
        "seed": options.seed,
    }


def digest(asked: Row, keys: Sequence[str]) -> str:
    """Shorten what names a run, or its requests, for file names."""
    return shortened(json.dumps({key: asked[key] for key in keys}, sort_keys=True))


def is_of(row: Row, asked: Row) -> bool:
    """Check whether a row comes from a run of one of the names."""
    return all(row.get(key) == asked[key] for key in (*SUBJECT, *ASKED_BY))


def notes(request: Request, subject: Subject, rows: Sequence[Row]) -> Iterator[str]:
    """List what a reader of the scores must know: contexts that were cut, a distance method without effect."""
    tasks = {row["task"]: row for row in rows if row["cut"]}
    for task, row in tasks.items():
        contexts = f"{row['cut']:,} of {row['requests']:,} contexts"
        yield f"{task}: {contexts} were longer than the window and lost their beginning; raise --max_length"
    longest = max((row["longest"] for row in rows), default=0)
    asked = any(key.startswith("position.distance.") for key in request.overrides)
    faults = subject.model.decoder.distance.length_faults(longest) if asked and longest else []
    yield from (f"no text was long enough for the distance method to change anything: {fault}" for fault in faults)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, HarnessOptions, measure, spell_out(arguments), output="folder")


if __name__ == "__main__":
    start(main)
