"""Saving a checkpoint of one process: seconds, and host memory beyond model and optimizer, of three ways.

    python -m benchmarks.checkpoints [--d_model 768] [--n_layers 12] [--folder FOLDER] [--repeats 3]

`whole` is how Lightning saves: all in one buffer, a file in the system's temporary folder, a copy, a read for the hash.
`shards` writes tensor by tensor and hashes on the way. `background` does so from a copy; its first time is how long the
training waits. Each way runs in a process of its own, in turns; one JSON line each.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from lab.model.decoder import Decoder, DecoderConfig
from lab.train.checkpoints import STATE, publish, temporary_folder
from lab.train.environment import hardware, versions
from lab.train.shards import NO_GROUP, ShardWriter, packed, tensors_to_save, write_shards

WAYS = ("whole", "shards", "background")
HEAD_DIM, VOCAB_SIZE = 64, 32_000


def status_bytes(key: str) -> int:
    """Read a field of this process's memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def make(d_model: int, n_layers: int) -> tuple[Decoder, torch.optim.Optimizer]:
    """Build a model and its optimizer's moments."""
    heads = d_model // HEAD_DIM
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": heads, "n_kv_heads": heads, "d_ff": 8 * d_model // 3}
    with torch.device("meta"):
        decoder = Decoder(DecoderConfig(**sizes, vocab_size=VOCAB_SIZE, tie_embeddings=False), seed=None)
    decoder.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.0, fused=True)
    for parameter in decoder.parameters():
        torch.nn.init.constant_(parameter, 0.5)
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return decoder, optimizer


def save(way: str, root: Path, decoder: Decoder, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Save once; return the seconds that the training waits, and those until the checkpoint is there."""
    start = time.perf_counter()
    if way == "whole":
        state = {"state_dict": decoder.state_dict(), "optimizer_states": [optimizer.state_dict()]}
        TorchCheckpointIO().save_checkpoint(state, temporary_folder(root) / STATE)
        publish(root, 1, 2)
        done = time.perf_counter() - start
        return done, done
    tensors, small = tensors_to_save(decoder, optimizer)
    writer = ShardWriter(root, 1, {STATE: packed(small)}, partial(publish, root, 1, 2))
    writing = write_shards(tensors, writer, None, background=way == "background")
    waited = time.perf_counter() - start
    if writing is not None:
        writing.result()
    return waited, time.perf_counter() - start


def measure(way: str, d_model: int, n_layers: int, folder: Path) -> dict[str, Any]:
    """Measure one save in this process."""
    warnings.filterwarnings("ignore", message=NO_GROUP)
    decoder, optimizer = make(d_model, n_layers)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak counts from here
    before = status_bytes("VmRSS")
    waited_s, total_s = save(way, folder / way, decoder, optimizer)
    n_parameters = sum(parameter.numel() for parameter in decoder.parameters())
    return {
        "parameters": n_parameters,
        "state_bytes": 3 * 4 * n_parameters,
        "extra_bytes": status_bytes("VmHWM") - before,
        "waited_s": waited_s,
        "total_s": total_s,
    }


def report(way: str, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up the repeats of one way: medians, and memory in units of the state."""
    middle = {key: statistics.median(row[key] for row in figures) for key in figures[0]}
    middle["extra_per_state"] = round(middle["extra_bytes"] / middle["state_bytes"], 3)
    about = {"benchmark": "checkpoints", "hardware": hardware(), "versions": versions()}
    return {**about, "command": shlex.join(sys.argv), "figures": {"way": way, **middle, "repeats": len(figures)}}


def main() -> None:
    """Run all ways in turns, each time in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d_model", type=int, default=768)
    parser.add_argument("--n_layers", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(measure(asked.way, asked.d_model, asked.n_layers, asked.folder)))
        return
    figures: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for _ in range(asked.repeats):
            for way in WAYS:
                size = [f"--d_model={asked.d_model}", f"--n_layers={asked.n_layers}", f"--folder={folder}"]
                words = [sys.executable, "-m", "benchmarks.checkpoints", *size, f"--way={way}"]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                figures[way].append(json.loads(done.stdout))
    for way in WAYS:
        print(json.dumps(report(way, figures[way])))


if __name__ == "__main__":
    main()
