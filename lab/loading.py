"""Open a trained model, or read its weights: a run folder, a checkpoint in it, or a Hugging Face folder.

The lab's decoder runs the models that it computes as transformers does; any other causal model runs in transformers.
Weights are read without torch.distributed.checkpoint, whose import takes as long as a small evaluation.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

from lab.config import Experiment, load_experiment
from lab.config.settings import nest
from lab.core.errors import CheckpointError, ConfigError
from lab.core.schema import validated
from lab.core.yaml import Settings, part
from lab.data.config import Conversations
from lab.data.preparation import shard_folder
from lab.data.tokenizer import end_of_document, load_tokenizer, special_ends
from lab.model.attention.inspection import check_finite
from lab.model.decoder import Decoder
from lab.model.huggingface import config as folders
from lab.model.huggingface.foreign import Foreign, load_foreign
from lab.model.huggingface.pretrained import load_pretrained
from lab.model.huggingface.rope import name_ignored
from lab.positions import Distance, Frequencies, frequencies
from lab.positions.method import FrequencyMethod
from lab.positions.methods import Replaced, describe_pair
from lab.positions.resolution import resolve
from lab.positions.rope import Plain
from lab.runs.checkpoints import SHARDING, WEIGHTS, Checkpoint, candidates, check_files, open_checkpoint, rejecting
from lab.runs.recovery import read_state
from lab.runs.source import CONFIG, EXPERIMENT, FIELD, find_place, find_tokenizer, is_hub_id


@dataclass(frozen=True)
class OpenedModel:
    """An opened model; fields that its source does not state are None.

    `decoder` is the model as evaluations run it. `train_len` is the training window in tokens: a run's data.window, a
    Hugging Face folder's max_position_embeddings. `folder` is the run folder, and `consumed_tokens` the tokens that the
    checkpoint was trained on. `settings` is the config.json of a Hugging Face folder. `experiment` is a run's, also in
    the folder that lab.export wrote of it; `home` is the folder of its files.
    """

    name: str
    decoder: Decoder | Foreign
    tokenizer: Tokenizer | None
    train_len: int
    experiment: Experiment | None = None
    folder: Path | None = None
    consumed_tokens: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    home: Path | None = None

    @property
    def model(self) -> Any:
        return self.decoder.model if isinstance(self.decoder, Foreign) else self.decoder

    @property
    def chat_template(self) -> str | None:
        """The chat template of a run's conversations, or a Hugging Face folder's own."""
        for data in [] if self.experiment is None else self.experiment.data.parts:
            if isinstance(data.corpus, Conversations):
                return data.corpus.template
        if self.home is not None:
            return folders.read_chat_template(self.home)
        return None

    @property
    def method(self) -> str:
        """Name the position methods in results, as frequency+distance with the parameters that are not defaults."""
        return describe_pair(self.decoder.frequencies.config, self.decoder.distance)


def decoder_builder(experiment: Experiment, **options: Any) -> Callable[[int | None], Decoder]:
    """Return a function that builds a run's decoder from a seed, with further options of the decoder."""
    # Callers may build the decoder on the meta device, where a table would have no values.
    with torch.device("cpu"):
        options["frequencies"] = experiment.frequencies
    return lambda seed: Decoder(experiment.model, distance=experiment.position.distance, seed=seed, **options)


def open_model(
    path: str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    device: torch.device | str = "cpu",
    window: int | None = None,
) -> OpenedModel:
    """Open a run folder, a checkpoint in it, a Hugging Face folder or hf:OWNER/NAME@REVISION, to compute in float32.

    `overrides` are dotted settings: any of a run's config, and position.frequency.* and position.distance.* of a
    Hugging Face folder. A tokenizer.json is read if there is one, in the folder or with the run's shards. `window`
    is the training window, in tokens, of a folder that states none.

    Raises: LabError for a folder that is neither, files that are broken, or a wrong override.
    """
    place = find_place(Path(path))
    folder = place.folder.resolve()
    overrides = dict(overrides or {})
    if place.is_hugging_face:
        name = Path(path).name if is_hub_id(Path(path)) else folder.name
        return open_hugging_face(folder, name, overrides, device, window)
    checkpoint = open_checkpoint(folder)
    folder = checkpoint.folder.parent.parent
    # Sizes and hashes of the manifest are checked before any file is used.
    check_files(folder)
    experiment = load_experiment(folder / CONFIG, overrides)
    decoder = decoder_builder(experiment)(None)  # no seed: the weights of the checkpoint replace all
    load_weights(decoder, checkpoint)
    check_weights(decoder.named_parameters(), checkpoint.folder)
    return OpenedModel(
        folder.name,
        decoder.to(device).eval(),
        tokenizer_in(folder) or tokenizer_in(shard_folder(experiment.data)),
        experiment.data.window,
        experiment,
        folder,
        checkpoint.consumed_tokens,
        home=folder,
    )


def open_hugging_face(
    folder: Path, name: str, overrides: Settings, device: torch.device | str, window: int | None
) -> OpenedModel:
    """Open a Hugging Face folder, by the lab's decoder or by transformers."""
    settings = folders.model_settings(folder, window)
    frequency, distance = replaced_methods(settings, overrides)
    decoder: Decoder | Foreign
    table = None
    is_served = settings["model_type"] in folders.FAMILIES and not folders.find_config_errors(
        settings, frequency is not None
    )
    # The decoder's layers with a window have plain distances. transformers' take a method if no text exceeds it.
    if is_served and (folders.find_window(settings) is None or distance == Plain()):
        if frequency is not None:
            cfg = folders.decoder_config(settings, own_frequencies=True)
            table = Frequencies.of(frequency, cfg.head_dim, cfg.theta)
        decoder = load_pretrained(folder, frequencies=table, distance=distance, device=device)
    else:
        name_ignored(folder / folders.NAME, settings)
        decoder = load_foreign(folder, device)
        table = decoder.own
        if frequency is not None:
            table = Frequencies.of(frequency, 2 * len(table.inv_freq), table.theta)
        decoder.install(table, distance)
    config = folder / EXPERIMENT
    opened = OpenedModel(
        name,
        decoder,
        tokenizer_in(folder),
        settings["max_position_embeddings"],
        load_experiment(config) if config.is_file() else None,
        settings=settings,
        home=folder,
    )
    check_weights(opened.model.named_parameters(), folder)
    return opened


def replaced_methods(settings: Settings, overrides: Settings) -> tuple[FrequencyMethod | None, Distance]:
    """Read the position methods that dotted overrides name; None means the model's own frequencies."""
    values = nest(overrides)
    # STRING's shift and window follow from the folder's training length, which its dataclass does not know.
    chosen = part(values, "position")
    if part(chosen, "distance").get("method") == "string":
        train_len = settings["max_position_embeddings"]
        chosen["distance"] = {**resolve("string", train_len, train_len), **chosen["distance"]}
    position = validated(Replaced, values).position
    return position.frequency if "frequency" in chosen else None, position.distance


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """Read a folder's tokenizer.json, if it has one."""
    file = find_tokenizer(folder)
    return None if file is None else load_tokenizer(file)


def token_ids(model: OpenedModel) -> dict[str, int | None]:
    """Find the ids that begin a text and end a document, from a run's tokenizer and corpus or from config.json."""
    if model.experiment is None:
        return {name: model.settings.get(name) for name in ("bos_token_id", "eos_token_id")}
    if model.tokenizer is None:
        return {}
    begins = next(reversed(special_ends(model.tokenizer)[0]), None)
    return {"bos_token_id": begins, "eos_token_id": end_of_document(model.experiment.data, model.tokenizer)}


def newest_checkpoints(run: Path, count: int) -> list[Path]:
    """List the newest checkpoints of a run folder, newest first; reject one that keeps too few."""
    checkpoints = candidates(run / "checkpoints")
    if len(checkpoints) < count:
        raise CheckpointError(
            f"--last={count}: {run} keeps {len(checkpoints)} checkpoints; name a run folder, lower it, or train with "
            "a higher train.keep_checkpoints"
        )
    return checkpoints[:count]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run folder's newest checkpoint, a checkpoint or a Hugging Face folder, on the CPU.

    A shared weight has all its names.

    Raises: CheckpointError.
    """
    place = find_place(path)
    if place.is_hugging_face:
        cfg = folders.decoder_config(folders.read_decoder_settings(place.folder), own_frequencies=True)
        return dict(load_pretrained(place.folder, frequencies=frequencies("rope", head_dim=cfg.head_dim)).state_dict())
    checkpoint = open_checkpoint(place.folder)
    weights = read_tensors(checkpoint)
    with rejecting(checkpoint.state):
        for name, first in read_state(checkpoint)["shared"].items():  # a tied head, which is stored as the embedding
            weights[name] = weights[first]
    return weights


def read_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Read all weights, a shared one once, on the CPU; any number of processes may have written some rows each.

    Raises: CheckpointError.
    """
    parts: dict[str, dict[int, Tensor]] = {}  # of each weight, by the number of their first row
    with rejecting(checkpoint.folder):
        for path in checkpoint.tensor_files(WEIGHTS):
            with safe_open(path, framework="pt") as file:
                shards = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
                for name in file.keys():  # noqa: SIM118, which is no dictionary
                    first_row = shards.get(name, {}).get("saved_offsets", [0])[0]
                    parts.setdefault(name, {})[first_row] = file.get_tensor(name)
    weights = {}
    for name, tensors in parts.items():
        first, *others = (tensors[row] for row in sorted(tensors))
        weights[name] = torch.cat([first, *others]) if others else first  # which would copy a single one
    return weights


def check_weights(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Raise DataError for weights that are not finite."""
    for name, weight in weights:
        check_finite(weight, f"{folder}: {name}", "use another checkpoint, or copy the folder again")


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a model the weights of a checkpoint; reject one of other shapes."""
    read = read_tensors(checkpoint)
    with rejecting(checkpoint.folder):
        for name, weight in model.named_parameters():
            if name not in read or read[name].shape != weight.shape:
                raise ValueError(f"it does not hold {name} as {tuple(weight.shape)}")
            weight.data = read[name]  # shared, so that memory contains the weights once


def start_from(decoder: Decoder, path: Path) -> None:
    """Load trained weights into a decoder; reject weights that do not fit, and a folder that contains none."""
    find_place(path, FIELD)
    weights = read_weights(path)
    check_weights(weights.items(), path)
    try:
        decoder.load_state_dict(weights)
    except RuntimeError as error:  # a heading, then a line for each weight
        lines = str(error).splitlines()[1:9]
        raise ConfigError(*(f"{FIELD}{path}: {line.strip()}; leave the model's sizes out" for line in lines)) from error
