"""Generation beside transformers' by `benchmarks.generation`, where transformers is installed."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks import record
from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.stage import Case, Options, run
from benchmarks.peers import found
from benchmarks.timing import best_device


def measure(options: Options, shape: str) -> dict[str, Any]:
    """Run the command on one shape and return its figures.

    Raises: Skipped without transformers.
    """
    found("transformers")
    path = options.out / f"generation_{shape}.jsonl"
    on_gpu, size = best_device().type == "cuda", options.size
    words = [f"--shapes={shape}", f"--lengths={size.prompts[0]}", f"--batches={size.generated}", "--json", str(path)]
    words += [
        f"--turns={size.turns}",
        f"--new-tokens={size.new_tokens}",
        f"--dtype={'bfloat16' if on_gpu else 'float32'}",
    ]
    subprocess.run([sys.executable, "-m", "benchmarks.generation", *words], cwd=ROOT, check=True)
    [row] = record.read(path)
    return dict(row.figures)


def cases(options: Options) -> list[Case]:
    """List the shapes."""
    return [(shape, partial(measure, options, shape)) for shape in options.size.shapes]


if __name__ == "__main__":
    run(cases)
