"""Measure a model on RULER's 13 tasks: retrieval, multi-hop tracing, aggregation, question answering.

    python -m eval.ruler MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. A test of a length takes at most that many of the model's own tokens, answer included:

    python -m eval.ruler models/Llama-3.1-8B --haystack=essays/ --squad=dev-v2.0.json --hotpotqa=hotpot_dev.json
    python -m eval.ruler runs/tiny_2k --lengths=1024,2048 --tests=100 --plot
    python -m eval.ruler runs/tiny_2k --last=5 --lengths=2048
    python -m eval.ruler runs/cpu_demo --tasks=niah_single_1,vt --lengths=448,512 --answer_budget=40 --tests=20
    python -m eval.ruler runs/tiny_2k --position.distance.method=string --position.distance.shift=683 \
        --position.distance.window=128 --lengths=2048

Where no file is given for essays, SQuAD or HotpotQA, made-up text takes its place, and the results name it under
`standins`; such scores are not those of other people. Prints a table, and writes to the run folder (runs/ruler-NAME for
a Hugging Face folder), or FOLDER: ruler.jsonl, a line for each checkpoint, task and length, once it is known, so that a
second call continues from there; ruler-cases/, every test with its expected and actual answer; ruler_summary.json.
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.engine.command import Form, Request, run
from eval.engine.rows import Found
from eval.engine.subject import note_idle_distance, open_subject
from eval.ruler.measuring import measure_subject, output_folder, prepare, rows_in, standin_line
from eval.ruler.options import RulerOptions
from eval.ruler.picture import draw_scores
from eval.ruler.results import Scores, over_checkpoints, summary, table
from lab.command import start
from lab.files import write_json
from lab.train.checkpoints import newest_checkpoints

SUMMARY, PICTURE = "ruler_summary.json", "ruler.png"


def measure(request: Request) -> Found:
    """Measure, write the results, and return the table.

    Raises: LabError.
    """
    options: RulerOptions = request.options
    places = newest_checkpoints(request.model, options.last) if options.last else [request.model]
    subject = open_subject(request._replace(model=places[0]))
    bench = prepare(subject, options)
    note_idle_distance(request.overrides, subject.model.decoder.distance, bench.lengths[-1])
    folder = output_folder(subject.model, request.folder)
    cells = rows_in(folder)
    each: list[Scores] = []
    names: list[str | None] = []
    for place in places:
        if each:
            subject = open_subject(request._replace(model=place))
        each.append(measure_subject(subject, bench, cells))
        names.append(subject.checkpoint)
    scores = over_checkpoints(each)
    model = subject.model
    about = {"model": model.name, "checkpoints": names, "method": model.method, "tests": options.tests}
    write_json(folder / SUMMARY, {**about, "seed": options.seed, **summary(scores, options.threshold)})
    title = f"{model.name}: {model.method}, {options.tests} tests each"
    title += f", mean of {len(names)} checkpoints" if options.last else ""
    text = "\n".join([title, "", table(scores, options.threshold), *standin_line(bench)])
    picture = folder / PICTURE if request.plots else None
    if picture is not None:
        draw_scores(scores, title, options.threshold, model.train_len, picture)
    rows = [{"task": task, "length": length, "score": score} for (task, length), score in scores.items()]
    return Found(text, [{**about, **row} for row in rows], cells.path, picture)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run("eval.ruler", __doc__, Form(options=RulerOptions, text="haystack"), measure, arguments)


if __name__ == "__main__":
    start(main)
