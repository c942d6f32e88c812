"""Time of needle tests against their roofline, and by estimate what a probe every 10B tokens takes of a training run.

    python -m benchmarks.probe [--model demo|large|FILE.yaml] [--lengths 256,512] [--tests 32] [--budget 64] [--turns 3]
        [--threads 1] [--json FILE]

`tests` draws the tests of a length and answers them in `--budget` tokens each, by random weights, whose answers do not
end early: `draw_s` and `whole_s` are seconds of drawing and of both, `times_roof` is `whole_s` over the least seconds
of benchmarks.roofline, measured in the same process. `decided` is the number of tokens after which a right answer
ends.

`share` is an estimate: the wall clock of 10B tokens at the training speed of arXiv:2410.18745, A.2 (16 A100), and the
least time of a probe of configs/tiny_2k.yaml or tiny_4k.yaml up to the window, every rank with its part of the 500
tests. `share_at_roof` is their ratio if answers are right and end when decided, `budget_share` if they take all
tokens; `times_allowed` is how many times the roofline the target of 0.1% (2K) or 0.3% (4K) allows.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import record, roofline
from benchmarks.generation import SHAPES
from benchmarks.gpu.training import new_decoder
from benchmarks.on_gpu import ROOT
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
ROOF_PART = 1
A100 = roofline.Speed(312e12, 2.039e12)  # bf16, 80 GB: NVIDIA's data sheet
A100_TOKENS_PER_S = {"tiny_2k": 1e12 / (28 * 86400), "tiny_4k": 1e12 / (32 * 86400)}  # of all 16
N_A100, INTERVAL = 16, 10e9
TARGETS = {"tiny_2k": 0.001, "tiny_4k": 0.003}


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


def decided_after(probe: NeedleProbe, length: int) -> int:
    """Count the tokens of a right answer up to the one that decides it."""
    case = probe.case(length, 0)
    ids = probe.tokenizer.encode(synthetic.answer(case.numbers), add_special_tokens=False).ids
    return next(n for n in range(1, len(ids) + 1) if probe.decided(case, probe.tokenizer.decode(ids[:n])))


def measure(options: argparse.Namespace, length: int, speed: roofline.Speed) -> dict[str, Any]:
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
    sizes = (options.tests, length - options.budget, options.budget)
    least_s = roofline.least_s(decoder.cfg, *sizes, decoder.embedding.weight.element_size(), speed)["whole"]
    return {
        "tests": options.tests,
        "budget": options.budget,
        "decided": decided_after(probe, length),
        "draw_s": draw_s,
        "whole_s": whole_s,
        "least_s": least_s,
        "times_roof": whole_s / least_s,
        **speed.figures(),
    }


def probe_least_s(name: str, budget: int) -> float:
    """Compute the least seconds of a probe of a config on one of its GPUs, all lengths up to the window."""
    experiment = load_experiment(ROOT / f"configs/{name}.yaml")
    probe, window = experiment.probe, experiment.data.window
    tests = -(-probe.tests // N_A100)
    lengths = range(2 * probe.step, window + 1, probe.step)
    prompts = [(tests, length - probe.budget, budget) for length in lengths]
    return sum(roofline.least_s(experiment.model, *sizes, 2, A100)["whole"] for sizes in prompts)


def share(name: str, decided: int) -> dict[str, Any]:
    """Estimate the share of wall clock of a probe every INTERVAL tokens."""
    interval_s = INTERVAL / A100_TOKENS_PER_S[name]
    budget = load_experiment(ROOT / f"configs/{name}.yaml").probe.budget
    whole, early = (probe_least_s(name, n) / interval_s for n in (budget, decided))
    return {
        "interval_s": interval_s,
        "share_at_roof": early,
        "budget_share": whole,
        "times_allowed": TARGETS[name] / early,
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
    speed = roofline.measured(device, torch.bfloat16 if device.type == "cuda" else torch.float32, ROOF_PART)
    print(f"{heading(device)}: {speed}")
    for length in map(int, options.lengths.split(",")):
        row = measure(options, length, speed)
        print(
            f"{options.model}, {options.tests} tests of {length}: {row['whole_s']:.3f} s, {row['draw_s']:.3f} of them "
            f"to draw, {row['times_roof']:.1f} times the roofline; a right answer ends after {row['decided']} tokens"
        )
        log.add("tests", f"{length:,}", {"model": options.model, "threads": options.threads, **row})
    for name, target in TARGETS.items():
        found = share(name, row["decided"])
        allowed = f"{found['times_allowed']:.1f} times the roofline reach the target of {target:.1%}"
        print(
            f"{name}, estimate on {N_A100} A100: {found['share_at_roof']:.4%} of wall clock at the roofline; {allowed}"
        )
        log.add("share", name, found)


if __name__ == "__main__":
    main()
