"""Measure updates of the runs of configs/tiny_2k.yaml and tiny_4k.yaml on one GPU, as `lab.fit` makes them.

    timeout 480 python -m benchmarks.on_gpu --out DIR [--toy]

DIR/results.jsonl gets a line (see benchmarks.record) for each config as soon as it is measured; one that fails is a
line too. An update of a model of one layer comes first and fills the compiler's cache. `dry_run_gib` is what
`lab.fit --dry_run` says of the same run, without the memory that no allocator sees. Corpora are synthetic and weights
random. Without a GPU, or with --toy, the runs have toy size.

Exit status: 0 if nothing failed; 1 if a run failed; 2 for an invalid command line, or if packages are missing.
"""

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.installed import require

if __name__ == "__main__":
    require("benchmarks.on_gpu")  # what the imports below need

from torch import cuda

from benchmarks import record
from benchmarks.gpu.sizes import GPU, LARGE, LARGE_4K, TOY, Options
from benchmarks.gpu.training import experiment_of, measure, release
from lab.train.memory import measure_memory

ONE = {"model.n_layers": 1}  # the graphs of all layers are the same


def compare(options: Options, config: Path) -> dict[str, Any]:
    """Measure a config's run, and estimate its memory."""
    found = measure(options, config)
    release()
    return {**found, "dry_run_gib": measure_memory(experiment_of(options, config)).total / 2**30}


def cases(options: Options) -> dict[str, Callable[[], dict[str, Any]]]:
    """List what is measured, by name."""
    first = {"compile": partial(measure, options, LARGE, ONE, updates=1)}
    return first | {config.stem: partial(compare, options, config) for config in (LARGE, LARGE_4K)}


def main() -> int:
    """Measure every case and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    options = Options(arguments.out.resolve(), TOY if arguments.toy or not cuda.is_available() else GPU)
    options.out.mkdir(parents=True, exist_ok=True)
    log = record.Log("on_gpu", options.out / "results.jsonl")
    failed = 0
    for name, case in cases(options).items():
        written = log.add("steps", name, **record.outcome_of(case))
        print(f"{name}: {written.status}, {written.seconds:.1f} s: {written.reason or written.figures}", flush=True)
        failed += written.status == "failed"
    shutil.rmtree(options.work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
