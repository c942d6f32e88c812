"""Find impactful tokens: those whose logits a brief training at the target length changes most.

    python -m eval.impact BASE TUNED -o FOLDER [--option=value ...] [--plot]

BASE and TUNED are run folders, checkpoints in one, or Hugging Face folders: a model, and the same model after a brief
training on full windows of the target length. Both score the same windows; at each position the 20% of all targets
whose logits differ most are marked, and the types that are marked most often are taken (arXiv:2409.00509, section
4.1; eval/impact/impactful.py has the method). Training selects sentences by them, with skip.selection: FOLDER:

    python -m eval.impact runs/cpu_demo runs/tuned -o runs/impact
    python -m eval.impact runs/cpu_demo runs/tuned -o runs/impact --by=class --windows=60 --coverage=0.6
    python -m eval.impact models/Llama-3-8B runs/tuned -o runs/impact --by=pos --tagger=en_core_web_sm
    python -m eval.impact models/Llama-3-8B models/Llama-3-80k -o runs/impact --text=books.jsonl --length=80000

FOLDER holds impact.json, with every type's share and rate and the classes of tokens beside them, and with --plot
impact.png, their shares along the text. The models compute one after the other, in float32, and are both kept in
memory.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr; 75 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eval.engine.command import NO_METHOD, Form, Request, run
from eval.engine.rows import Found
from eval.engine.subject import device_for, source
from eval.impact.impactful import BoolArray, FloatArray, IntArray, mark, shares_by_position
from eval.impact.picture import draw_shares
from eval.impact.results import Labels, rows_of, summary
from eval.impact.token_classes import token_texts
from eval.impact.windows import file_windows
from lab.bars import Bar
from lab.command import NOTHING_WRITTEN, start
from lab.data.packing import IGNORE, Windows, held_out_windows
from lab.data.part_of_speech import label_types, open_tagger
from lab.data.selecting import RESULT, ImpactConfig
from lab.data.tokenizer import check_ids, needed, vocabulary_hash
from lab.errors import ConfigError, DataError
from lab.files import write_json, writing
from lab.loading import OpenedModel, open_model
from lab.model.attention.inspection import target_logits
from lab.skip.selection import sentences_with
from lab.skip.sentences import sentence_ends, split_sentences

STRETCH = 200  # marked targets, at least, for each point of the picture
MOST_STRETCHES = 40  # points of a line
PICTURE = "impact.png"


@dataclass(frozen=True)
class Arguments:
    """The parsed command line."""

    base: Path
    tuned: Path
    folder: Path
    options: ImpactConfig
    plots: bool


def parse(request: Request) -> Arguments:
    """Check the command line.

    Raises: ConfigError with a line for every fault.
    """
    models, folder = request.places, request.folder
    faults = []
    if len(models) != 2:
        given = " ".join(map(str, models))
        faults.append(f"BASE TUNED={given}: must be two models, the first arguments; see --help")
    if folder is None:
        faults.append("-o: must be given, the folder to write; for instance -o runs/impact")
    if faults or folder is None:
        raise ConfigError(*faults)
    return Arguments(models[0], models[1], folder, request.options, request.plots)


def analyse(asked: Arguments) -> Found:
    """Analyse, and write the folder; the rows are the types.

    Raises: LabError.
    """
    options, device = asked.options, device_for(asked.options.device)
    tagger = None if options.tagger is None else open_tagger(options.tagger)
    base, tuned = open_model(asked.base), open_model(asked.tuned)
    tokenizer = shared_tokenizer(asked, base, tuned)
    texts = token_texts(tokenizer)
    windows = draw_windows(options, tuned, tokenizer)
    scored = scored_targets(windows, texts)
    tags = {} if tagger is None else label_types(tagger, windows.rows(), texts)
    with writing(f"-o {asked.folder}", "folder"):  # before time is spent on results
        asked.folder.mkdir(parents=True, exist_ok=True)
    changes = np.abs(score(tuned, windows, device, "tuned") - score(base, windows, device, "base"))
    marked = mark(changes, scored, options.top)
    by_class = Labels.by_class(texts)
    by = {"token": Labels.by_token(texts), "class": by_class, "pos": Labels.by_tag(tags, len(texts))}[options.by]
    found = windows.targets[scored], changes[scored], marked[scored]
    tally = by.tally(*found)
    chosen = tally.choose(options.coverage, options.min_count)
    if not chosen:
        raise DataError(f"--min_count={options.min_count}: no {options.by} is so frequent; lower it or add --windows")
    token_ids = np.flatnonzero(np.isin(by.of_token, chosen))
    result = {
        "base": {"path": str(asked.base), **source(base, device)},
        "tuned": {"path": str(asked.tuned), **source(tuned, device)},
        "options": {**asdict(options), "length": windows.tokens.shape[1]},
        "tokenizer": vocabulary_hash(tokenizer),
        "targets": int(scored.sum()),
        "marked": int(marked.sum()),
        "held_of_marked": float(tally.marked[chosen].sum() / marked.sum()),
        "held_of_sentences": sentence_share(windows, token_ids, tokenizer),
        "types": rows_of(tally, by, chosen),
        "classes": rows_of(by_class.tally(*found), by_class, None),
        "token_ids": token_ids.tolist(),
    }
    labels = by if options.by == "pos" else by_class
    return write(asked, result, windows.targets, marked, labels)


def scored_targets(windows: Windows, texts: Sequence[str | None]) -> BoolArray:
    """Mark the places whose target is text, not a special token.

    Raises: DataError where there is no such target.
    """
    scored: BoolArray = windows.targets != IGNORE
    special = np.array([text is None for text in texts])
    scored[scored] = ~special[windows.targets[scored]]
    if not scored.any():
        raise DataError("--windows: hold no target to score; give other text")
    return scored


def shared_tokenizer(asked: Arguments, base: OpenedModel, tuned: OpenedModel) -> Tokenizer:
    """Find the tokenizer of both models.

    Raises: ConfigError where they differ, DataError where there is none.
    """
    found = {path: model.tokenizer for path, model in ((asked.tuned, tuned), (asked.base, base)) if model.tokenizer}
    if len({vocabulary_hash(tokenizer) for tokenizer in found.values()}) > 1:
        raise ConfigError(f"BASE={asked.base}: its tokenizer is not that of TUNED; give the model that was tuned")
    return needed(next(iter(found.values()), None))


def draw_windows(options: ImpactConfig, tuned: OpenedModel, tokenizer: Tokenizer) -> Windows:
    """Draw the windows that both models score.

    Raises: LabError.
    """
    length = options.length or tuned.train_len
    if length is None:
        raise ConfigError("--length: must be set, TUNED does not state its training window; give the target length")
    asked: dict[str, int] = {"length": length, "windows": options.windows, "seed": options.seed}
    if options.text is not None:
        return file_windows(options.text, tokenizer, vocab_size=tuned.decoder.cfg.vocab_size, **asked)
    if tuned.experiment is None:
        raise ConfigError("--text: must be set, a Hugging Face folder has no corpus of its own; give a text file")
    return held_out_windows(tuned.experiment.data, **asked)


def score(model: OpenedModel, windows: Windows, device: torch.device, name: str) -> FloatArray:
    """Compute the logit of every target; the model is on the device during the call only.

    Shapes: float64 (windows, length).
    Raises: DataError for a vocabulary larger than the model's.
    """
    check_ids([windows.tokens.max(), windows.targets.max()], model.decoder.cfg.vocab_size)
    decoder = model.decoder.to(device)
    bar = Bar(zip(windows.tokens, windows.targets, strict=True), desc=name, unit="window", total=len(windows.tokens))
    found = [
        target_logits(decoder, *(torch.from_numpy(x)[None].to(device) for x in (tokens, targets))).cpu()
        for tokens, targets in bar
    ]
    decoder.to("cpu")
    return torch.cat(found).double().numpy()


def sentence_share(windows: Windows, token_ids: IntArray, tokenizer: Tokenizer) -> float:
    """Compute the share of the windows' sentences that hold one of the token types."""
    ends = sentence_ends(tokenizer)
    impactful = np.zeros(len(ends), dtype=np.bool_)
    impactful[token_ids] = True
    found = [sentences_with(impactful, row, split_sentences(row, ends)) for row in windows.tokens]
    return float(np.concatenate(found).mean())


def write(asked: Arguments, result: dict[str, Any], targets: IntArray, marked: BoolArray, labels: Labels) -> Found:
    """Write the result and, where asked for, a picture of the labels."""
    file = asked.folder / RESULT
    write_json(file, result)
    found = Found(summary(result), [{"metric": "impact", **row} for row in result["types"]], file)
    if not asked.plots:
        return found
    n_windows, length = targets.shape
    stretches = min(max(1, int(marked.sum()) // STRETCH), MOST_STRETCHES, length)
    edges = np.linspace(0, length, stretches + 1).round().astype(np.int64)
    shares = shares_by_position(labels.of_token[targets[marked]], np.nonzero(marked)[1], edges, len(labels.names))
    title = f"{result['base']['model']} against {result['tuned']['model']}: what was marked in {n_windows:,} windows"
    draw_shares(labels.names, shares, edges, title, asked.folder / PICTURE)
    return found._replace(picture=asked.folder / PICTURE)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    refused = {"--distance": NO_METHOD, "--frequency": NO_METHOD}
    form = Form(options=ImpactConfig, refused=refused, each=False, missing="")
    work = lambda request: analyse(parse(request))  # noqa: E731
    return run("eval.impact", __doc__, form, work, arguments, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
