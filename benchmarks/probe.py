"""Time of needle tests against their roofline, and by estimate what a probe every 10B tokens takes of a training run.

    python -m benchmarks.probe [--model demo|large|FILE.yaml] [--lengths 256,512] [--tests 32] [--budget 64] [--turns 3]
        [--threads 1] [--json FILE]

`tests` draws the tests of a length and answers them in `--budget` tokens each, by random weights, whose answers do not
end early: `draw_s` and `whole_s` are seconds of drawing and of both, `times_roof` is `whole_s` over the least seconds
of benchmarks.roofline, measured in the same process. `decided` is the number of tokens after which a right answer
ends.

`share` is an estimate of a probe of configs/tiny_2k.yaml or tiny_4k.yaml on 16 A100, over the wall clock of 10B tokens
at the training speed of arXiv:2410.18745, A.2. No answer ends early. Prompts are read at half of the peak, those of
one-number tests twice. A step takes its roofline, or as long as starting its kernels, if that is more: 30 a layer and
20 more, by a count of operators, assumed to take 15 us each from Python.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import record, roofline
from benchmarks.generation import SHAPES
from benchmarks.gpu.sizes import ROOT
from benchmarks.gpu.training import new_decoder
from benchmarks.timing import best_device, heading, median_s
from lab.config import load_experiment
from lab.data import synthetic
from lab.data.config import Synthetic
from lab.data.tokenizer import train_bpe
from lab.model.config import DecoderConfig
from lab.probe.config import DISTANCES, ProbeConfig
from lab.probe.effective_length import AT_ONCE, NeedleProbe
from lab.probe.measuring import ModelInTraining

DOCUMENTS, VOCABULARY = 300, 600
ROOF_PART = 1
A100 = roofline.Speed(312e12, 2.039e12)  # bf16, 80 GB: NVIDIA's data sheet
READING = A100.operations_per_s / 2
LAUNCH_S = 15e-6
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


def share(name: str, at_once: int) -> dict[str, Any]:
    """Estimate the share of wall clock of a probe every INTERVAL tokens, `at_once` lengths at a time."""
    experiment = load_experiment(ROOT / f"configs/{name}.yaml")
    probe, cfg, window = experiment.probe, experiment.model, experiment.data.window
    lengths = range(2 * probe.step, probe.longest(window) + 1, probe.step)
    reading_s, decoding_s, steps = 0.0, 0.0, 0
    for start in range(0, len(lengths), at_once):
        part = lengths[start : start + at_once]
        rows = -(-probe.tests * len(part) // N_A100)
        reading_s += roofline.prefill(cfg, rows, part[-1] - probe.budget, 2).operations / READING
        step_s = max(roofline.step(cfg, rows, part[-1], 2).seconds(A100), LAUNCH_S * (30 * cfg.n_layers + 20))
        decoding_s += (probe.budget - 1) * step_s
        steps += probe.budget - 1
    tests = -(-probe.distance_tests * DISTANCES // N_A100)
    reading_s += 2 * roofline.prefill(cfg, tests, window, 2).operations / READING
    share = (reading_s + decoding_s) / (INTERVAL / A100_TOKENS_PER_S[name])
    return {
        "lengths_at_once": at_once,
        "reading_s": reading_s,
        "steps": steps,
        "decoding_s": decoding_s,
        "share": share,
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
        for at_once in (1, AT_ONCE):
            found = share(name, at_once)
            print(f"{name}, estimate on {N_A100} A100, {at_once} lengths at once: {found['share']:.3%}", end="")
            print(
                f" of wall clock (must {target:.1%}); {found['steps']:,} steps in {found['decoding_s']:.0f} s", end=""
            )
            print(f", {found['reading_s']:.0f} s of reading")
            log.add("share", name, found)


if __name__ == "__main__":
    main()
