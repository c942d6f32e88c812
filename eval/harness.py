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
where none is given, string, dca, self_extend and rerope take those of eval.methods, from the training window.
eval/harness_encoding.py says how requests are encoded and cut, as the harness's own class hf does it;
eval/harness_scoring.py and eval/harness_answers.py how they are scored and answered. Answers are greedy; tasks that
sample are refused. Needs the extra: pip install -e '.[harness]'.

Prints a table, and adds a line for each task, metric and filter to harness.jsonl in eval/ of the run folder
(runs/harness-NAME for a Hugging Face folder) or FOLDER: eval/harness_intervals.py tells the kinds of interval,
`longest` is the longest text that was read, `cut` counts contexts that lost their beginning, `seconds` are the model's.
harness-cases/ holds every test with what was said and how it scored, and, for each of --tasks, the harness's own
results as JSON; a name whose JSON is there is not run again, unless its files have changed. Finished requests are kept
there at once, so that after Ctrl-C (exit status 75) or a crash the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eval.appended import written_to
from eval.cells import Cells, Row
from eval.command import run, start
from eval.harness_answers import Ended, Speaker
from eval.harness_chat import Chat
from eval.harness_distance import with_parameters
from eval.harness_encoding import Encoder, Ends
from eval.harness_ends import ends_of
from eval.harness_model import Responder, evaluate
from eval.harness_options import HarnessOptions, spell_out
from eval.harness_requests import FinishedRequests
from eval.harness_results import cases_of, rows_of, table
from eval.harness_scoring import Scorer
from eval.harness_tasks import definition, load_tasks, task_manager
from eval.measuring import Request
from eval.subject import SUBJECT, Subject, open_subject, result_folder
from lab.errors import ConfigError
from lab.files import write_json
from lab.model.generate import greedy

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
        raise ConfigError("--plot: there is no picture of these results; leave it out, eval.compare makes a table")
    options: HarnessOptions = request.options
    request = with_parameters(request)
    manager = task_manager(options.names, options.include_path)
    subject = open_subject(request)
    cells = Cells(result_folder(KIND, request, subject) / f"{KIND}.jsonl", NAMED_BY)
    cases = cells.path.parent / CASES
    asked = {name: describe(subject, options, name, definition(manager, name)) for name in options.names}
    files = {name: cases / f"{name}-{digest(row, (*SUBJECT, *ASKED_BY))}.json" for name, row in asked.items()}
    missing = [name for name in options.names if not files[name].exists()]
    load_tasks(manager, missing, runs_code=options.confirm_run_unsafe_code)
    if missing:
        finished = FinishedRequests(cases / f"requests-{digest(asked[missing[0]], READ_WITH)}.jsonl")
        try:
            for name in missing:
                run_name(responder_of(request, subject, finished), options, manager, asked[name], cells, files[name])
        except KeyboardInterrupt as signal_:
            kept = f"{len(finished.known):,} finished requests are in {finished.file.path}"
            raise KeyboardInterrupt(f"stopped; {kept}; the same command goes on") from signal_
    rows = [row for name in options.names for row in cells if is_of(row, asked[name])]
    return "\n".join([table(rows), *notes(request, subject, rows), f"written to {cells.path}"])


def responder_of(request: Request, subject: Subject, finished: FinishedRequests) -> Responder:
    """Make what answers the harness's requests.

    Raises: LabError.
    """
    options: HarnessOptions = request.options
    chat = Chat(request.model) if options.apply_chat_template else None
    ends = Ends((), () if subject.stop_id is None else (subject.stop_id,))
    if subject.model.folder is None:
        ends = ends_of(request.model, subject.tokenizer, subject.stop_id)
    decoder, window = subject.model.decoder, window_of(subject, options)
    encoder = Encoder(subject.tokenizer, ends, window, subject.vocab_size, templated=chat is not None)

    def generate(prompts: Tensor, n_tokens: int, ended: Ended) -> Tensor:
        with subject.computing():
            return greedy(decoder, prompts.to(subject.device), n_tokens, subject.stop_id, ended=ended)

    scorer = Scorer(decoder, encoder, subject.computing, options.rows, subject.device)
    return Responder(scorer, Speaker(encoder, generate, options.rows, options.max_gen_toks), finished, chat)


def window_of(subject: Subject, options: HarnessOptions) -> int:
    """Choose the most tokens of a text."""
    return options.max_length or subject.model.train_len or MOST_TOKENS


def run_name(
    responder: Responder, options: HarnessOptions, manager: Any, asked: Row, cells: Cells, whole: Path
) -> None:
    """Run one of the names and write down its tests, its rows, and last the harness's own results.

    Raises: LabError.
    """
    settings = {"num_fewshot": options.num_fewshot, "limit": options.limit}
    runs_code = options.confirm_run_unsafe_code
    results = evaluate(responder, manager, asked["asked"], settings=settings, seed=options.seed, runs_code=runs_code)
    tests = cases_of(results)
    for row in rows_of(results, responder.outcomes):
        key = (row["task"], row["filter"])
        file = f"{CASES}/{row['task']}-{row['filter']}-{whole.stem[-8:]}.jsonl"
        cells.add({**asked, **row}, (file, tests[key]) if key in tests else None)
    with written_to(cells.path.parent):
        del results["samples"]
        write_json(whole, json.loads(json.dumps(results, default=str)))


def describe(subject: Subject, options: HarnessOptions, name: str, defined: str) -> Row:
    """Say what is run, on what, and with what."""
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
    named = json.dumps({key: asked[key] for key in keys}, sort_keys=True)
    return hashlib.sha256(named.encode()).hexdigest()[:8]


def is_of(row: Row, asked: Row) -> bool:
    """Tell whether a row is of a run of one of the names."""
    return all(row.get(key) == asked[key] for key in (*SUBJECT, *ASKED_BY))


def notes(request: Request, subject: Subject, rows: Sequence[Row]) -> Iterator[str]:
    """Say what a reader of the scores must know: contexts that were cut, a distance method without effect."""
    tasks = {row["task"]: row for row in rows if row["cut"]}
    for task, row in tasks.items():
        contexts = f"{row['cut']:,} of {row['requests']:,} contexts"
        yield f"{task}: {contexts} were longer than the window and lost their beginning; raise --max_length"
    longest = max((row["longest"] for row in rows), default=0)
    asked = any(key.startswith("position.distance.") for key in request.overrides)
    faults = subject.model.decoder.distance.config.length_faults(longest) if asked and longest else []
    yield from (f"no text was long enough for the distance method to change anything: {fault}" for fault in faults)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(__doc__, HarnessOptions, measure, spell_out(arguments), output="folder")


if __name__ == "__main__":
    start(main)
