"""Starting, and the loader of one process: opening a trillion tokens, packing, and what a training step waits for it.

    python -m benchmarks.loader [--json FILE]

Shards are simulated: random lengths with SlimPajama's spread about a mean of 1,000 tokens, ids all 0. Those of the
trillion are one shard of 15.6 billion tokens, without disk blocks, under 64 names, opened as every rank does:
manifests, indices, and the first pack of 16,384 tokens, at step 0 and after 100 million samples. Packing reads files in
the page cache: the first packs fault in the pages of the maps. A step of the waiting is a pause as long as an H200
takes at the speed that is aimed at. Starting is a command in a process of its own, up to its first line of work.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks import record
from lab.data.batch import to_batch
from lab.data.config import DataConfig, Mode, Text
from lab.data.module import PackedData
from lab.data.preparation import shard_folder
from lab.data.tokenizing import TokenShardWriter
from lab.evidence.methods import Repeat
from lab.masks import Causal

WINDOW, PACK = 2048, 16_384
SHARDS, DOCUMENTS = 64, 15_600_000  # of the trillion
SMALL = 100_000  # documents that are packed
PACKS, ROUNDS, STEPS, LATE = 100, 5, 20, 10**8
STEP_S = PACK / 68_500
STARTS = {
    "import lab": ("-c", "import lab"),
    "probe-lab --help": ("-m", "lab.cli", "--help"),
    "a setting that is rejected": ("-m", "lab.fit", "cpu_demo", "--model.n_heads=3"),
    "a dry run": ("-m", "lab.fit", "cpu_demo", "--dry_run"),
}
MODES: tuple[Mode, ...] = ("natural", "concatenated", "uniform")


def starting(words: tuple[str, ...]) -> record.Figures:
    """Time a command, the first time apart: it may have to compile Python's files."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=False)
        seconds.append(time.perf_counter() - start)
    return {"start_s": statistics.median(seconds[1:])}


def document_ends(n: int) -> np.ndarray:
    """Draw where documents end."""
    lengths = np.random.default_rng(0).lognormal(np.log(1000) - 1.2**2 / 2, 1.2, n)
    return np.ceil(lengths).astype(np.int64).cumsum()


def simulate(folder: Path, documents: int, shards: int) -> None:
    """Write one shard, whose tokens take no disk blocks, and link it under further names."""
    first, ends = folder / "task-00000", document_ends(documents)
    manifest = TokenShardWriter(first, "<u4").close()
    (first / "train.ends.bin").write_bytes(ends.tobytes())
    (first / "train.sources.bin").write_bytes(bytes(4 * documents))
    with (first / "train.tokens.bin").open("wb") as file:
        file.truncate(4 * int(ends[-1]))
    for name, entry in manifest["files"].items():  # the hashes are those of empty files, and never compared
        entry["bytes"] = (first / name).stat().st_size
    manifest["splits"]["train"] = {"documents": documents, "tokens": int(ends[-1])}
    manifest["sources"] = ["simulated"]
    (first / "manifest.json").write_text(json.dumps(manifest))
    for number in range(1, shards):
        name = f"task-{number:05d}"
        (folder / name).mkdir()
        for path in first.iterdir():
            os.link(path, folder / name / path.name)
        (folder / name / "manifest.json").unlink()
        (folder / name / "manifest.json").write_text(json.dumps({**manifest, "task": name}))


def module_of(config: DataConfig) -> PackedData:
    """Build the data module of a run on one process."""
    train = SimpleNamespace(micro_batch_tokens=PACK, n_packs=1, context_parallel=1)
    rest = {
        "mask": Causal(),
        "run": SimpleNamespace(seed=0),
        **dict.fromkeys(("skip", "weights")),
        "evidence": Repeat(),
        "stored": {},
    }
    return PackedData(SimpleNamespace(data=config, train=train, **rest))


def opening(config: DataConfig, sample: int) -> record.Figures:
    """Time one rank's opening, and its first pack from a sample on."""
    start, data = time.perf_counter(), module_of(config)
    data.setup()
    opened = time.perf_counter()
    waiting = range(sample, sample + config.look_ahead)
    if sample:
        data.states[0] = np.array([0, waiting.stop, *waiting])
    next(data.stream(0))
    return {
        "tokens": data.store.n_tokens,
        "manifest_mb": sum(path.stat().st_size for path in shard_folder(config).glob("*/manifest.json")) / 1e6,
        "open_s": opened - start,
        "first_pack_s": time.perf_counter() - opened,
    }


def packing(config: DataConfig) -> record.Figures:
    """Time packs of one stream, in CPU seconds: the first, from files just mapped, and those after them."""
    data = module_of(config)
    data.setup()
    batches, times = map(to_batch, data.stream(0)), []
    next(batches)
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(PACKS):
            next(batches)
        times.append(time.process_time() - start)
    return {"first_tokens_per_s": PACKS * PACK / times[0], "tokens_per_s": PACKS * PACK / min(times[1:])}


def waiting(config: DataConfig) -> record.Figures:
    """Time how long steps wait for their packs."""
    data, waited = module_of(config), 0.0
    data.setup()
    batches = data.batches()
    next(batches)
    for _ in range(STEPS):
        time.sleep(STEP_S)
        start = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - start
    return {"step_s": STEP_S, "wait_s": waited / STEPS, "share": waited / STEPS / STEP_S}


def main() -> None:
    """Print the figures."""
    log = record.Log("loader", record.read_options(__doc__).json)

    def note(stage: str, case: str, figures: record.Figures) -> None:
        print(f"{stage}, {case}:", ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
        log.add(stage, case, figures)

    bytearray(24 * 2**20)  # as lab.fit does
    for case, words in STARTS.items():
        note("starting", case, starting(words))
    with tempfile.TemporaryDirectory() as place:
        large, small = (DataConfig(corpus=Text(path=name), window=WINDOW, folder=place) for name in ("large", "small"))
        simulate(shard_folder(large), DOCUMENTS, SHARDS)
        for sample in (0, LATE):
            note("opening", f"sample {sample:,}", opening(large, sample))
        simulate(shard_folder(small), SMALL, 1)
        for mode in MODES:
            note("packing", mode, packing(replace(small, mode=mode)))
        note("waiting", "packs made ahead", waiting(small))


if __name__ == "__main__":
    main()
