"""Small models as they lie on disk: a run folder with one checkpoint, made without training."""

import dataclasses
import shutil

import torch
from safetensors.torch import save_file

from lab.config import load_experiment
from lab.counts import COUNTED
from lab.data.preparation import shard_folder
from lab.model.decoder import Decoder
from lab.schema import format_yaml
from lab.train.checkpoints import publish, temporary_folder
from lab.train.shards import packed, shared_names, weights_of

SIZES = {"d_model": 16, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "tie_embeddings": False}
CONSUMED = 4096  # tokens


def write_run(folder, data, position=None, std=0.4, **model):
    """Write a run folder on prepared data whose weights are drawn, wide enough for attention to be uneven."""
    tokenizer = data.tokenizer
    settings = {
        "run": {"name": folder.name, "folder": str(folder.parent)},
        "model": {**SIZES, **model},
        "data": {
            "corpus": dataclasses.asdict(data.corpus),
            "tokenizer": {"method": "bpe", "vocab_size": tokenizer.vocab_size},
            "window": data.window,
            "held_out_frac": data.held_out_frac,
            "folder": data.folder,
            "look_ahead": data.look_ahead,
        },
        "position": position or {},
    }
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(format_yaml(settings))
    experiment = load_experiment(folder / "config.yaml")
    decoder = Decoder(experiment.model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in decoder.parameters():
            mean = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.empty(parameter.shape).normal_(mean, std, generator=generator))
    save_weights(folder / "checkpoints", decoder)
    return folder


def write_source(folder, data, **model):
    """Write a run folder with a tokenizer and a whole config, as training writes it."""
    write_run(folder, data, **model)
    shutil.copy(shard_folder(data) / "tokenizer.json", folder)
    (folder / "config.yaml").write_text(load_experiment(folder / "config.yaml").to_yaml())
    return folder


def save_weights(root, decoder, consumed=CONSUMED, keep=2):
    """Publish a checkpoint that holds a decoder's weights, and the state of a run that counted up to 4 tokens."""
    folder, weights = temporary_folder(root), {name: tensor.clone() for name, tensor in weights_of(decoder).items()}
    save_file(weights, folder / "weights-00000.safetensors", {"consumed_tokens": str(consumed)})
    counts = {"max_len": 4, "lengths": [0] * 5, **{name: [0] * 4 for name in COUNTED if name != "lengths"}}
    state = {
        "step": 1,
        "consumed_tokens": consumed,
        "skipped_steps": 0,
        "final": {},
        "schedule": {"last_epoch": 1, "base_lrs": [0.1], "lr_lambdas": [None], "_last_lr": [0.1]},
        "data": {"streams": torch.zeros((1, 3), dtype=torch.int64)},
        "recording": {"counts": counts, "sums": {"loss": 1.0}},
        "shared": shared_names(decoder),
    }
    (folder / "state.ckpt").write_bytes(packed(state))
    return publish(root, consumed, keep)
