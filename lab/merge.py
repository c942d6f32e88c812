"""Merge trained models: every weight of the merged one is the weighted sum of theirs.

    probe-lab merge MODEL MODEL [MODEL ...] [--weights=W,W,...] [--positions=MODEL] [--train_len=TOKENS] -o FOLDER

    W_merged = w_1 W_1 + w_2 W_2 + ...,    w_1 + w_2 + ... = 1    (arXiv:2409.00509, Eq. 7)

A MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder. All must be of
one shape. FOLDER becomes a Hugging Face folder in float32; sums are taken in float64. By default all models have the
same weight, which for two models is LongRecipe's 0.5:

    probe-lab merge models/Llama-3-8B runs/replayed --positions=runs/replayed -o merged
    probe-lab merge runs/seed0 runs/seed1 runs/seed2 -o average
    probe-lab merge models/Llama-3-8B runs/replayed --weights=0.3,0.7 --positions=runs/replayed -o merged

If the models' position methods differ, --positions names the model whose methods and training window are kept. Its
distance method must be plain, the only one that a Hugging Face folder supports. --train_len replaces the models' own
training window, for instance that of a model which was extended and then replayed. tokenizer.json is copied if the
models that have one agree. The ids that begin and end a text are those of the first model that has them. All models are
loaded at once, in float32.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from lab.core.arguments import read_options
from lab.core.command import Arguments, CommandSpec, run, start
from lab.core.errors import ConfigError
from lab.core.schema import PathText, Positive
from lab.data.tokenizer import load_tokenizer
from lab.loading import OpenedModel, open_model, token_ids
from lab.longrecipe.stages import MergeConfig
from lab.model.decoder import Decoder
from lab.model.huggingface.config import decoder_config, hugging_face_settings, read_decoder_settings
from lab.model.huggingface.pretrained import save_pretrained
from lab.runs.source import FREE, TOKENIZER, find_place, find_tokenizer

ONE_SHAPE = "merge models of one shape and tokenizer"
Models = dict[Path, OpenedModel]


class MergeOptions(MergeConfig):
    """The options of a merge."""

    weights: tuple[float, ...] = (1.0,)
    """Weights of the models, which sum to 1; default: equal shares."""
    positions: PathText | None = None
    """Model whose position methods and training window are kept; must be set if the methods differ."""
    train_len: Positive | None = None
    """Training window in tokens; default: the longest of the models' own."""


def merge_models(args: Arguments) -> str:
    """Read the command line, merge, write the folder, and return a summary."""
    options: MergeOptions = read_options(MergeOptions, args.settings)
    paths = [Path(word) for word in args.positional]
    if len(paths) < 2:
        raise ConfigError(
            f"MODEL={', '.join(args.positional)}: must be two models or more, before the options; see --help"
        )
    if args.options.o is None:
        raise ConfigError("-o: must be given, the folder to write; for instance -o merged")
    shares = options.weights if "weights" in args.settings else (1 / len(paths),) * len(paths)
    if len(shares) != len(paths):
        raise ConfigError(f"--weights={list(shares)}: must be {len(paths)} numbers, one for each model; correct it")
    if options.positions is not None and Path(options.positions) not in paths:
        raise ConfigError(
            f"--positions={options.positions}: must be one of the models; use one of {', '.join(args.positional)}"
        )
    for path in paths:
        if (place := find_place(path)).is_hugging_face:  # the lab's decoder must serve it
            decoder_config(read_decoder_settings(place.folder), own_frequencies=False)
    models = {path: open_model(path) for path in paths}
    check_same_shape(models)
    merged, train_len = choose_positions(models, options)
    tokenizer = find_shared_tokenizer(models)
    # One of the models receives the sum: no memory is needed for another one.
    add_weights([models[path].model for path in paths], shares, merged)
    files = {} if tokenizer is None else {TOKENIZER: tokenizer.read_text(encoding="utf-8")}
    ids: dict[str, int | None] = {}
    for model in models.values():  # each id is that of the first model that has one
        for name, number in token_ids(model).items():
            if number is not None:
                ids.setdefault(name, number)
    save_pretrained(merged, args.options.o, train_len=train_len, token_ids=ids, files=files)
    parts = " + ".join(f"{share:g} {path}" for path, share in zip(paths, shares, strict=True))
    has = "with a" if files else "no"
    return f"{args.options.o}: {parts}, {merged.cfg.n_parameters():,} parameters; {has} {TOKENIZER}"


def check_same_shape(models: Models) -> None:
    """Reject models that differ from the first one in a setting that decides the shapes of weights or their use."""
    errors, settings = [], {}
    for path, model in models.items():
        cfg = model.decoder.cfg
        settings[path] = dataclasses.asdict(cfg) | {"attention_width": cfg.width}
        first, ours = next(iter(settings.items()))
        for name, value in ours.items():
            if name not in FREE and settings[path][name] != value:
                errors.append(f"model.{name}: {settings[path][name]} in {path}, {value} in {first}; {ONE_SHAPE}")
    if errors:
        raise ConfigError(*errors)


def choose_positions(models: Models, options: MergeOptions) -> tuple[Decoder, int | None]:
    """Return the model whose positions are kept, and the training window: that of the options, or the longest."""
    positions = {path: f"{model.method} at theta {model.decoder.frequencies.theta}" for path, model in models.items()}
    train_len: int | None = max(model.train_len for model in models.values())
    kept = models[Path(options.positions or next(iter(models)))]
    if len(set(positions.values())) > 1:
        if options.positions is None:
            listed = ", ".join(f"{path} has {position}" for path, position in positions.items())
            raise ConfigError(f"--positions: must be given, the positions differ ({listed}); name the model to keep")
        train_len = kept.train_len
    decoder = kept.model
    if decoder.frequencies.method == "dynamic_ntk":
        train_len = None  # the method has its own and would compute something else with another
    train_len = options.train_len or train_len
    # Positions that the folder does not support are reported before the models are summed.
    hugging_face_settings(decoder.cfg, decoder.frequencies, decoder.distance, "float32", train_len)
    return decoder, train_len


def find_shared_tokenizer(models: Models) -> Path | None:
    """Find the tokenizer.json of the first model that has one, if any; reject models of other vocabularies."""
    shared: Path | None = None
    for path in models:
        file = find_tokenizer(path.resolve())
        shared = shared or file
        if file and shared and load_tokenizer(file).get_vocab() != load_tokenizer(shared).get_vocab():
            raise ConfigError(f"{path}: its tokenizer is not that of {shared.parent}; {ONE_SHAPE}")
    return shared


@torch.no_grad()
def add_weights(decoders: Sequence[Decoder], shares: Sequence[float], into: Decoder) -> None:
    """Store the weighted sum of the decoders' weights, computed in float64, in one of them or in another model."""
    first, *others = [dict(decoder.named_parameters()) for decoder in decoders]
    for name, parameter in into.named_parameters():
        total = first[name].double() * shares[0]  # not from zero, which would turn -0.0 into 0.0
        for other, share in zip(others, shares[1:], strict=True):
            total.add_(other[name].double(), alpha=share)
        parameter.copy_(total)


SPEC = CommandSpec(
    description=__doc__, positional=None, values={"-o": "Folder of the merged model; required."}, options=MergeOptions
)
main = partial(run, SPEC, merge_models)


if __name__ == "__main__":
    start(main)
