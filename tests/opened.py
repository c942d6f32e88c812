"""Small models as they lie on disk: a run folder with one checkpoint, made without training."""

import dataclasses
import shutil

import torch
from safetensors.torch import save_file

from lab.config import load_experiment
from lab.core.files import build_manifest, write_json
from lab.core.yaml import format_yaml
from lab.counts import COUNTED, PositionCounts
from lab.data.preparation import shard_folder
from lab.model.decoder import Decoder
from lab.runs.checkpoints import COUNTS, MANIFEST, add_to_manifest, candidates, drop_from_manifest, read_run_manifest
from lab.runs.folder import packed_counts
from lab.runs.shards import packed, publish, shared_names, temporary_folder, weights_of

SIZES = {"d_model": 16, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "tie_embeddings": False}
CONSUMED = 4096  # tokens
RUN = "0" * 64  # digest of the run


def write_run(folder, data, position=None, std=0.4, **model):
    """Write a run folder on prepared data whose weights are drawn, wide enough for attention to be uneven."""
    own = {name: getattr(data, name) for name in ("window", "held_out_frac", "folder", "look_ahead")}
    own["tokenizer"] = {"method": "bpe", "vocab_size": data.tokenizer.vocab_size}
    own["corpus"] = dataclasses.asdict(data.corpus)
    settings = {
        "run": {"name": folder.name, "folder": str(folder.parent)},
        "model": {**SIZES, **model},
        "data": own,
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
    sealed(folder)
    return folder


def write_source(folder, data, **model):
    """Write a run folder with a tokenizer and a whole config, as training writes it."""
    write_run(folder, data, **model)
    shutil.copy(shard_folder(data) / "tokenizer.json", folder)
    (folder / "config.yaml").write_text(load_experiment(folder / "config.yaml").to_yaml())
    return sealed(folder)


def sealed(folder):
    """Write the manifest of a run folder anew, over all of its files as they are."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    kept = [name for name in names if not name.startswith("checkpoints/") and name not in (COUNTS, MANIFEST)]
    drop_from_manifest(folder, RUN, names)
    add_to_manifest(folder, kept)
    return folder


def adopted(folder):
    """Write the manifests of a run's checkpoints anew, over their files as they are, and as those of this run."""
    run = read_run_manifest(folder)[0]
    for checkpoint in candidates(folder / "checkpoints"):
        (checkpoint / MANIFEST).unlink()
        files = build_manifest(checkpoint)
        write_json(checkpoint / MANIFEST, {"run": run, "consumed_tokens": int(checkpoint.name[7:]), "files": files})
    return folder


def small_files(consumed=CONSUMED, shared=None, optimizer=None):
    """Write the files without tensors of a checkpoint after one step of N tokens, each a segment of its own."""
    counts = {"max_len": 4, **{name: [0] * 4 for name in COUNTED}, "lengths": [0, consumed, 0, 0, 0]}
    state = {
        "step": 1,
        "consumed_tokens": consumed,
        "skipped_steps": 0,
        "final": {},
        "optimizer": optimizer or {},
        "shared": shared or {},
        "data": {"streams": torch.tensor([[1, 1, -1]])},
        "schedule": {"last_epoch": 1, "base_lrs": [0.1], "lr_lambdas": [None], "_last_lr": [0.1]},
        "recording": {"counts": counts, "sums": {"loss": 1.0}},
    }
    return {"state.ckpt": packed(state), COUNTS: packed_counts(PositionCounts.from_dict(counts))}


def save_weights(root, decoder, consumed=CONSUMED, keep=2):
    """Publish a checkpoint that holds a decoder's weights."""
    folder, weights = temporary_folder(root), {name: tensor.clone() for name, tensor in weights_of(decoder).items()}
    save_file(weights, folder / "weights-00000.safetensors")
    for name, data in small_files(consumed, shared_names(decoder)).items():
        (folder / name).write_bytes(data)
    return publish(root, consumed, keep, RUN, build_manifest(folder))
