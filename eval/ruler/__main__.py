"""Measure a model on RULER's 13 tasks: retrieval, multi-hop tracing, aggregation, question answering.

    python -m eval.ruler MODEL [--option=value ...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. A test of a length takes exactly or just below so many of the model's own tokens, answer included:

    python -m eval.ruler models/Llama-3.1-8B --haystack=essays/ --squad=dev-v2.0.json --hotpotqa=hotpot_dev.json
    python -m eval.ruler runs/tiny_2k --lengths=1024,2048 --tests=100 --plot
    python -m eval.ruler runs/tiny_2k --last=5 --lengths=2048
    python -m eval.ruler runs/cpu_demo --tasks=niah_single_1,vt --lengths=384,512 --answer_budget=24 --tests=20
    python -m eval.ruler runs/tiny_2k --position.distance.method=string --position.distance.shift=683 \
        --position.distance.window=128 --lengths=2048

Where no file is given for essays, SQuAD or HotpotQA, made-up text takes its place, and the results name it under
`standins`; such scores are not those of other people. Prints a table, and writes to the run folder (runs/ruler-NAME for
a Hugging Face folder), or FOLDER: ruler.jsonl, a line for each checkpoint, task and length, as soon as it is known, so
that a second call goes on from there; ruler-cases/, every test with what was expected and said; ruler_summary.json.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.measuring import device_for, refuse_idle_distance
from eval.ruler.measuring import ROWS, Subject, measure_subject, output_folder, prepare, read_rows, standin_line
from eval.ruler.options import Request, help_text, read_request
from eval.ruler.picture import draw_scores
from eval.ruler.results import Scores, over_checkpoints, summary, table
from lab.assembly import computes_in_bf16
from lab.data.preparation import end_of_document
from lab.errors import CheckpointError, DataError, LabError
from lab.files import sha256, write_json
from lab.loading import OpenedModel, open_model
from lab.model.generate import greedy
from lab.model.huggingface_config import read_settings
from lab.runs.checkpoints import MANIFEST, candidates, fault_of, folder_name

WRONG = 2
SUMMARY, PICTURE = "ruler_summary.json", "ruler.png"


def measure(request: Request) -> str:
    """Measure, write the results, and return the table to print.

    Raises: LabError.
    """
    options, device = request.options, device_for(request.options.device)
    places = newest_checkpoints(request.model, options.last) if options.last else [request.model]
    model = open_model(places[0], request.overrides, device=device)
    subject = as_subject(model, places[0], device)
    bench = prepare(subject, options)
    refuse_idle_distance(request.overrides, model.decoder.distance, bench.lengths[-1])
    folder = output_folder(model, request.output)
    known = read_rows(folder)
    each: list[Scores] = []
    names: list[str | None] = []
    steps = len(places) * len(options.chosen) * len(bench.lengths)
    with tqdm(total=steps * options.tests, desc="ruler", unit="test") as bar:
        for place in places:
            if each:
                subject = as_subject(open_model(place, request.overrides, device=device), place, device)
            each.append(measure_subject(subject, bench, folder, known, device, bar))
            names.append(subject.checkpoint)
    scores = over_checkpoints(each)
    about = {"model": model.name, "checkpoints": names, "method": model.method, "tests": options.tests}
    write_json(folder.path / SUMMARY, {**about, "seed": options.seed, **summary(scores, options.threshold)})
    title = f"{model.name}: {model.method}, {options.tests} tests each"
    title += f", mean of {len(names)} checkpoints" if options.last else ""
    lines = [title, "", table(scores, options.threshold), *standin_line(bench), f"written to {folder.path / ROWS}"]
    if request.plots:
        draw_scores(scores, title, options.threshold, subject.train_len, folder.path / PICTURE)
        lines.append(f"picture: {folder.path / PICTURE}")
    return "\n".join(lines)


def newest_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest whole checkpoints of a run folder, newest first.

    Raises: CheckpointError for another folder, or for too few.
    """
    if not (run / "checkpoints").is_dir():
        raise CheckpointError(f"--last={count}: {run} is not a run folder with checkpoints; leave --last out")
    whole = [folder for folder in candidates(run / "checkpoints") if fault_of(folder) is None]
    if len(whole) < count:
        raise CheckpointError(
            f"--last={count}: {run} keeps {len(whole)} whole checkpoints; lower it, or train with a higher "
            "train.keep_checkpoints"
        )
    return whole[:count]


def as_subject(model: OpenedModel, place: Path, device: torch.device) -> Subject:
    """Collect what tests need of a model and what its results are named by.

    Raises: LabError.
    """
    if model.tokenizer is None:
        raise DataError("tokenizer.json: missing; put it into the Hugging Face folder, or prepare the run's shards")
    experiment, in_bf16 = model.experiment, device.type == "cuda"
    if experiment is not None:
        in_bf16 = computes_in_bf16(experiment, device)
        stop_id: int | None = end_of_document(experiment.data, model.tokenizer)
    else:
        stop_id = first_id(read_settings(place.resolve()).get("eos_token_id"))
    checkpoint = None if model.consumed_tokens is None else folder_name(model.consumed_tokens)
    return Subject(
        about=model,
        generate=partial(generate, model, stop_id, device, in_bf16),
        tokenizer=model.tokenizer,
        stop_id=stop_id,
        vocab_size=model.decoder.cfg.vocab_size,
        train_len=model.train_len,
        checkpoint=checkpoint,
        weights=weights_of(model, place, checkpoint),
        precision="bfloat16" if in_bf16 else "float32",
    )


def first_id(value: Any) -> int | None:
    """Read the token that ends a document from config.json, the first where there are several."""
    return first_id(value[0]) if isinstance(value, list) and value else value if isinstance(value, int) else None


def generate(
    model: OpenedModel, stop_id: int | None, device: torch.device, in_bf16: bool, prompts: Tensor, n_tokens: int
) -> Tensor:
    """Continue prompts greedily, in bfloat16 where the run trained in it; a Hugging Face model on any GPU."""
    context: AbstractContextManager[Any] = torch.autocast(device.type, torch.bfloat16) if in_bf16 else nullcontext()
    with context:
        return greedy(model.decoder, prompts, n_tokens, stop_id)


def weights_of(model: OpenedModel, place: Path, checkpoint: str | None) -> str:
    """Name weights: a checkpoint by its manifest, a Hugging Face folder by its files' names, sizes and times."""
    if model.folder is not None and checkpoint is not None:
        return sha256(model.folder / "checkpoints" / checkpoint / MANIFEST)[:16]
    files = [(path.name, path.stat()) for path in sorted(place.glob("*.safetensors"))]
    listed = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(help_text(str(__doc__)))
        return 0 if words else WRONG
    try:
        print(measure(read_request(words)))
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
