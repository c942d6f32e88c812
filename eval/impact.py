"""Find impactful tokens: those whose logits a brief training at the target length changes most.

    probe-lab impact BASE TUNED -o FOLDER [--option=value ...]

BASE and TUNED are models as other evaluations take them (docs/evaluation.md). TUNED is BASE after a brief training on
full windows of the target length. Both score the same windows. At each position the 20% of all targets whose logits
differ most are marked. The types that are marked most often are taken (arXiv:2409.00509, section 4.1;
eval/engine/impactful.py has the method). Training selects sentences by them, with skip.selection: FOLDER:

    probe-lab impact runs/cpu_demo runs/tuned -o runs/impact
    probe-lab impact runs/cpu_demo runs/tuned -o runs/impact --windows=60 --coverage=0.6
    probe-lab impact models/Llama-3-8B runs/tuned -o runs/impact --tagger=en_core_web_sm
    probe-lab impact models/Llama-3-8B models/Llama-3-80k -o runs/impact --text=books.jsonl --length=80000

FOLDER gets impact.json, with every type's share and rate. The models compute one after the other, in float32; both stay
in memory.
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.impactful import choose_labels, label_tokens, mark, tally, token_texts
from eval.engine.subject import source
from eval.engine.text import Result, to_text
from eval.engine.texts import NO_CORPUS, sample_texts
from lab.core.command import NOTHING_WRITTEN, Bar, start
from lab.core.errors import ConfigError, DataError
from lab.core.files import write_json, writing
from lab.core.types import IGNORE, FloatArray, Row
from lab.data.packing import Windows, held_out_windows
from lab.data.selecting import (
    RESULT,
    ImpactConfig,
    label_types,
    open_tagger,
    sentence_ends,
    sentences_with,
    split_sentences,
)
from lab.data.text_files import read_texts
from lab.data.tokenizer import check_ids, require_tokenizer, vocabulary_hash
from lab.loading import OpenedModel, open_model
from lab.model.attention.inspection import token_scores
from lab.model.devices import device_for

FORMS = {"occurrences": ",", "marked": ",", "mean_change": ".3f"}
FORMS |= dict.fromkeys(("share_of_marked", "share_of_all", "rate"), ".1%")


def find_impactful(request: Request) -> Result:
    """Analyse, and write the folder; the rows are the types."""
    models, folder, options = request.positional, request.folder, request.options
    if len(models) != 2 or folder is None:
        given = " ".join(map(str, models))
        raise ConfigError(f"BASE TUNED={given}: must be two models, the first arguments, and -o FOLDER; see --help")
    device = device_for(options.device)
    tagger = None if options.tagger is None else open_tagger(options.tagger)
    base, tuned = map(open_model, models)
    tokenizer = shared_tokenizer(base, tuned, models[0])
    texts = token_texts(tokenizer)
    windows = sample_windows(options, tuned, tokenizer)
    is_special = np.array([text is None for text in texts])
    # IGNORE is negative: clip makes it an index, and the first condition excludes it.
    scored = (windows.targets != IGNORE) & ~is_special[windows.targets.clip(0)]
    tags = None if tagger is None else label_types(tagger, windows.rows(), texts)
    # A folder that cannot be written is rejected before time is spent on results.
    with writing(f"-o {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    # Each model is on the device during its own passes alone: both together may exceed a GPU's memory.
    changes = np.abs(score(tuned, windows, device, "tuned") - score(base, windows, device, "base"))
    marked = mark(changes, scored, options.top)
    targets = windows.targets[scored]
    of_token, names = label_tokens(texts, tags)
    types = tally(of_token[targets], changes[scored], marked[scored], names)
    chosen = choose_labels(types, options.coverage, options.min_count)
    if not chosen:
        raise DataError(f"--min_count={options.min_count}: no type is so frequent; lower it or add --windows")
    impactful = np.isin(of_token, chosen)
    rows = types.assign(chosen=types.index.isin(chosen)).to_dict("records")
    ends = sentence_ends(tokenizer)
    held = [sentences_with(impactful, row, split_sentences(row, ends)) for row in windows.tokens]
    result: Row = {
        "base": {"path": str(models[0]), **source(base, device)},
        "tuned": {"path": str(models[1]), **source(tuned, device)},
        "options": {**asdict(options), "length": windows.tokens.shape[1]},
        "tokenizer": vocabulary_hash(tokenizer),
        "targets": int(scored.sum()),
        "marked": int(marked.sum()),
        "held_of_marked": float(types.loc[chosen, "marked"].sum() / marked.sum()),
        "held_of_sentences": float(np.concatenate(held).mean()),
        "types": rows,
        "token_ids": np.flatnonzero(impactful).tolist(),
    }
    write_json(folder / RESULT, result)
    return Result(format_types(result), [{"metric": "impact", **row} for row in rows], [folder / RESULT])


def shared_tokenizer(base: OpenedModel, tuned: OpenedModel, place: Path) -> Tokenizer:
    """Return the tokenizer of both models. Reject two that differ, or none."""
    if base.tokenizer and tuned.tokenizer and vocabulary_hash(base.tokenizer) != vocabulary_hash(tuned.tokenizer):
        raise ConfigError(f"BASE={place}: its tokenizer is not that of TUNED; give the model that was tuned")
    return require_tokenizer(tuned.tokenizer or base.tokenizer)


def sample_windows(options: ImpactConfig, tuned: OpenedModel, tokenizer: Tokenizer) -> Windows:
    """Sample the windows that both models score."""
    length = options.length or tuned.train_len
    if options.text is None:
        if tuned.experiment is None:
            raise ConfigError(f"--text: {NO_CORPUS}")
        return held_out_windows(tuned.experiment.data, length=length, windows=options.windows, seed=options.seed)
    rows = sample_texts(
        "\n".join(read_texts(Path(options.text), "--text")),
        f"--text={options.text}",
        tokenizer,
        n_tokens=length + 1,
        texts=options.windows,
        seed=options.seed,
        vocab_size=tuned.decoder.cfg.vocab_size,
        option="--windows",
    )
    return Windows(rows[:, :-1], rows[:, 1:])


def score(model: OpenedModel, windows: Windows, device: torch.device, name: str) -> FloatArray:
    """Compute the logit of every target, float64 (windows, length); the model is on the device during the call only."""
    check_ids([windows.tokens.max(), windows.targets.max()], model.decoder.cfg.vocab_size)
    decoder = model.decoder.to(device)
    pairs = torch.from_numpy(np.stack([windows.tokens, windows.targets], axis=1))[:, :, None]
    logits = []
    for pair in Bar(pairs, desc=name, unit="window"):
        logits.append(token_scores(decoder, *pair.to(device))[2].cpu())
    decoder.to("cpu")
    return torch.cat(logits).numpy()


def format_types(result: Row) -> str:
    """Format the first types as a table; a star marks types that were taken."""
    types = pd.DataFrame(result["types"])
    types["label"] += types["chosen"].map({True: " *", False: ""})
    table = types.rename(columns={"label": "type"}).drop(columns="chosen").set_index("type")
    return (
        f"{to_text(table[:12], FORMS)}\n{len(table):,} types, of which {types['chosen'].sum():,} were taken (*), "
        f"{len(result['token_ids']):,} token ids: {result['held_of_marked']:.0%} of the marked targets, in "
        f"{result['held_of_sentences']:.0%} of the sentences"
    )


SPEC = EvaluationSpec(
    name="impact",
    description=__doc__,
    options=ImpactConfig,
    excluded=OF_RUNS,
    each=False,
    missing="",
    stopped=NOTHING_WRITTEN,
)
main = partial(run_evaluation, SPEC, find_impactful)


if __name__ == "__main__":
    start(main)
