"""Find impactful tokens: those whose logits a brief training at the target length changes most.

    python -m eval.impact BASE TUNED -o FOLDER [--option=value ...] [--plot]

BASE and TUNED are run folders, checkpoints in one, or Hugging Face folders: a model, and the same model after a brief
training on full windows of the target length. Both score the same windows. At each position the 20% of all targets
whose logits differ most are marked, and the types that are marked most often are taken (arXiv:2409.00509, section
4.1; eval/engine/impactful.py has the method). Training selects sentences by them, with skip.selection: FOLDER:

    python -m eval.impact runs/cpu_demo runs/tuned -o runs/impact
    python -m eval.impact runs/cpu_demo runs/tuned -o runs/impact --by=class --windows=60 --coverage=0.6
    python -m eval.impact models/Llama-3-8B runs/tuned -o runs/impact --by=pos --tagger=en_core_web_sm
    python -m eval.impact models/Llama-3-8B models/Llama-3-80k -o runs/impact --text=books.jsonl --length=80000

FOLDER holds impact.json, with every type's share and rate and the classes of tokens beside them, and with --plot
impact.png, their shares along the text. The models compute one after the other, in float32; both stay in memory.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr; 75 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from eval.engine.command import Form, Request, run
from eval.engine.impactful import BoolArray, FloatArray, IntArray, Labels, Tally, mark, shares_by_position, token_texts
from eval.engine.rows import Found, to_text
from eval.engine.subject import device_for, draw_texts, source
from lab.command import NOTHING_WRITTEN, Bar, start
from lab.data.arrangement import IGNORE
from lab.data.packing import Windows, held_out_windows
from lab.data.selecting import RESULT, ImpactConfig, label_types, open_tagger
from lab.data.tokenizer import check_ids, needed, vocabulary_hash
from lab.draw import draw, save
from lab.errors import ConfigError, DataError
from lab.files import write_json, writing
from lab.loading import OpenedModel, open_model
from lab.model.attention.inspection import target_logits
from lab.probe.haystacks import read_text
from lab.skip.sentences import sentence_ends, sentences_with, split_sentences

STRETCH = 200  # marked targets, at least, for each point of the picture
MOST_STRETCHES = 40  # points of a line
PICTURE = "impact.png"
SHOWN = 12  # rows of the printed table
MANY = 0.9  # of all sentences; a selection that holds more removes little
FORMS = {
    "occurrences": ",",
    "marked": ",",
    **dict.fromkeys(("of marked", "of all", "rate"), ".1%"),
    "mean change": ".3f",
}
NAMED = 8  # labels at most that the picture names


def analyse(request: Request) -> Found:
    """Analyse, and write the folder; the rows are the types.

    Raises: LabError.
    """
    models, folder, options = request.places, request.folder, request.options
    faults = []
    if len(models) != 2:
        given = " ".join(map(str, models))
        faults.append(f"BASE TUNED={given}: must be two models, the first arguments; see --help")
    if folder is None:
        faults.append("-o: must be given, the folder to write; for instance -o runs/impact")
    if faults or folder is None:
        raise ConfigError(*faults)
    device = device_for(options.device)
    tagger = None if options.tagger is None else open_tagger(options.tagger)
    base, tuned = (open_model(place) for place in models)
    tokenizer = shared_tokenizer(base, tuned, models[0])
    texts = token_texts(tokenizer)
    windows = draw_windows(options, tuned, tokenizer)
    scored = scored_targets(windows, texts)
    tags = {} if tagger is None else label_types(tagger, windows.rows(), texts)
    with writing(f"-o {folder}", "folder"):  # before time is spent on results
        folder.mkdir(parents=True, exist_ok=True)
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
    types = rows_of(tally, by, chosen)
    result: dict[str, Any] = {
        "base": {"path": str(models[0]), **source(base, device)},
        "tuned": {"path": str(models[1]), **source(tuned, device)},
        "options": {**asdict(options), "length": windows.tokens.shape[1]},
        "tokenizer": vocabulary_hash(tokenizer),
        "targets": int(scored.sum()),
        "marked": int(marked.sum()),
        "held_of_marked": float(tally.marked[chosen].sum() / marked.sum()),
        "held_of_sentences": sentence_share(windows, token_ids, tokenizer),
        "types": types,
        "classes": rows_of(by_class.tally(*found), by_class, None),
        "token_ids": token_ids.tolist(),
    }
    write_json(folder / RESULT, result)
    found_rows = [{"metric": "impact", **row} for row in types]
    picture = folder / PICTURE if request.plots else None
    if picture is not None:
        names = f"{result['base']['model']} against {result['tuned']['model']}"
        title = f"{names}: what was marked in {len(windows.targets):,} windows"
        save(chart(windows.targets, marked, by if options.by == "pos" else by_class, title), picture)
    return Found(summary(result), found_rows, folder / RESULT, picture)


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


def shared_tokenizer(base: OpenedModel, tuned: OpenedModel, place: Path) -> Tokenizer:
    """Find the tokenizer of both models.

    Raises: ConfigError where they differ, DataError where there is none.
    """
    found = [model.tokenizer for model in (tuned, base) if model.tokenizer]
    if len({vocabulary_hash(tokenizer) for tokenizer in found}) > 1:
        raise ConfigError(f"BASE={place}: its tokenizer is not that of TUNED; give the model that was tuned")
    return needed(next(iter(found), None))


def draw_windows(options: ImpactConfig, tuned: OpenedModel, tokenizer: Tokenizer) -> Windows:
    """Draw the windows that both models score.

    Raises: LabError.
    """
    length = options.length or tuned.train_len
    if length is None:
        raise ConfigError("--length: must be set, TUNED does not state its training window; give the target length")
    asked: dict[str, int] = {"length": length, "windows": options.windows, "seed": options.seed}
    if options.text is not None:
        rows = draw_texts(
            read_text(Path(options.text), "--text"),
            f"--text={options.text}",
            tokenizer,
            n_tokens=length + 1,
            texts=options.windows,
            seed=options.seed,
            vocab_size=tuned.decoder.cfg.vocab_size,
            option="--windows",
        )
        return Windows(rows[:, :-1], rows[:, 1:])
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


def rows_of(tally: Tally, labels: Labels, chosen: Sequence[int] | None) -> list[dict[str, Any]]:
    """Describe the labels that occur, in falling order of their rate; `chosen` where types were taken among them."""
    order = [int(label) for label in np.lexsort((-tally.marked, -tally.rate)) if tally.occurrences[label]]
    return [
        {
            "label": labels.names[label],
            "occurrences": int(tally.occurrences[label]),
            "marked": int(tally.marked[label]),
            "share_of_marked": float(tally.marked[label] / tally.marked.sum()),
            "share_of_all": float(tally.occurrences[label] / tally.occurrences.sum()),
            "rate": float(tally.rate[label]),
            "mean_change": float(tally.change[label] / tally.occurrences[label]),
            **({} if chosen is None else {"chosen": label in chosen}),
        }
        for label in order
    ]


def summary(result: dict[str, Any]) -> str:
    """Format the classes and the first types as tables; a star marks types that were taken."""
    by, types = result["options"]["by"], result["types"]
    lines = [] if by == "class" else [table("class", result["classes"]), ""]
    lines += [table(by, types[:SHOWN]), ""]
    if len(types) > SHOWN:
        lines[-1:] = [f"... and {len(types) - SHOWN:,} more", ""]
    n_chosen = sum(row["chosen"] for row in types)
    lines.append(
        f"{n_chosen:,} taken (*), {len(result['token_ids']):,} token ids: {result['held_of_marked']:.0%} of the marked "
        f"targets, in {result['held_of_sentences']:.0%} of the sentences"
        + "; with a lower --coverage a selection removes more of them"
        * (result["held_of_sentences"] > MANY)
    )
    return "\n".join(lines)


def table(title: str, rows: Iterable[dict[str, Any]]) -> str:
    """Format labels, a line each."""
    columns = {"occurrences": "occurrences", "marked": "marked", "share_of_marked": "of marked"}
    columns |= {"share_of_all": "of all", "rate": "rate", "mean_change": "mean change"}
    shown = [
        {title: row["label"] + " *" * row.get("chosen", False)} | {columns[name]: row[name] for name in columns}
        for row in rows
    ]
    return to_text(shown, FORMS)


def chart(targets: IntArray, marked: BoolArray, labels: Labels, title: str) -> Any:
    """Draw a picture like Figure 4 of arXiv:2409.00509: each label's share of the marked targets along the text."""
    length = targets.shape[1]
    stretches = min(max(1, int(marked.sum()) // STRETCH), MOST_STRETCHES, length)
    edges = np.linspace(0, length, stretches + 1).round().astype(np.int64)
    shares = shares_by_position(labels.of_token[targets[marked]], np.nonzero(marked)[1], edges, len(labels.names))
    order = [label for label in np.argsort(-shares.mean(1), kind="stable") if shares[label].any()]
    lines = {labels.names[label]: shares[label] for label in order[:NAMED]}
    if len(order) > NAMED:
        lines[f"{len(order) - NAMED:,} others"] = shares[order[NAMED:]].sum(0)
    middles = (edges[1:] + edges[:-1]) / 2
    rows = [
        {"position": position, "share": share, "label": name}
        for name, line in lines.items()
        for position, share in zip(middles, line, strict=True)
    ]
    return draw(
        rows,
        "position",
        "share",
        "label",
        percent=True,
        title=title,
        x_title="position in the text (tokens)",
        y_title="share of the marked targets",
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    form = Form(options=ImpactConfig, lacks=("--distance", "--frequency"), each=False, missing="")
    return run("eval.impact", __doc__, form, analyse, arguments, stopped=NOTHING_WRITTEN)


if __name__ == "__main__":
    start(main)
