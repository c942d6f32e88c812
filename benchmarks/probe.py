"""Time of needle tests.

    python -m benchmarks.probe [--model demo|large|FILE.yaml] [--lengths 256,512] [--tests 32] [--budget 64] [--turns 3]
        [--threads 1] [--json FILE]

`tests` draws the tests of a length and answers them in `--budget` tokens each, by random weights, whose answers do not
end early: `draw_s` and `whole_s` are seconds of drawing and of both.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.generation import SHAPES
from benchmarks.gpu.training import new_decoder
from benchmarks.timing import best_device, heading, median_s
from lab.config import load_experiment
from lab.data import synthetic
from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe
from lab.model.config import DecoderConfig
from lab.probe.config import ProbeConfig
from lab.probe.effective_length import NeedleProbe
from lab.probe.measuring import ModelInTraining

DOCUMENTS, VOCABULARY = 300, 600


def model_config(name: str) -> DecoderConfig:
    """Return a shape by its name, or the model of a config."""
    return SHAPES[name] if name in SHAPES else load_experiment(Path(name)).model


def make_probe(options: argparse.Namespace, length: int, device: torch.device) -> NeedleProbe:
    """Build the tests of one length on the synthetic corpus."""
    documents = [*map(Synthetic().document, range(DOCUMENTS))]
    fixed = synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION + synthetic.ANSWER_PREFIX
    tokenizer = train_bpe([fixed, *documents], VOCABULARY)
    config = ProbeConfig(
        tests=options.tests, step=length, max_length=length, needles=4, digits=6, answer_budget=options.budget
    )
    return NeedleProbe(config, tokenizer, " ".join(documents), window=length, stop_id=None, device=device)


def measure(options: argparse.Namespace, length: int) -> dict[str, Any]:
    """Time the tests of one length."""
    device = best_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    decoder = new_decoder(model_config(options.model), device).to(dtype).eval()
    probe = make_probe(options, length, device)
    model = ModelInTraining(decoder, None, nullcontext)
    draw_s = median_s(
        lambda: [probe.case(length, test) for test in range(options.tests)], torch.device("cpu"), options.turns
    )
    whole_s = median_s(lambda: probe.run_at(model, length), device, options.turns)
    return {
        "tests": options.tests,
        "budget": options.budget,
        "draw_s": draw_s,
        "whole_s": whole_s,
    }


def main() -> None:
    """Print both tables."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--lengths", default="256,512")
    parser.add_argument("--tests", type=int, default=32)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, log = best_device(), record.Log("probe", options.json)
    print(heading(device))
    for length in map(int, options.lengths.split(",")):
        row = measure(options, length)
        times = f"{row['whole_s']:.3f} s, {row['draw_s']:.3f} of them to draw"
        print(f"{options.model}, {options.tests} tests of {length}: {times}")
        log.add("tests", f"{length:,}", {"model": options.model, "threads": options.threads, **row})


if __name__ == "__main__":
    main()
