"""Probe a trained model's effective context length with four needles.

    python -m eval.probe MODEL [--setting=value ...] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken) or a checkpoint in it. The settings are those of the run's own
`probe` section, and its position methods, any of which can be changed:

    python -m eval.probe runs/cpu_demo
    python -m eval.probe runs/cpu_demo --tests=500 --max_length=320 --step=16
    python -m eval.probe runs/cpu_demo/checkpoints/tokens-000004000000 --haystack=essays.txt --seed=1
    python -m eval.probe runs/cpu_demo --position.distance.method=rerope --position.distance.window=96

Writes probes.jsonl and cases/ as training does, to FOLDER; left out, to eval/probe-TOKENS-HASH in the run folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.effective_length import LengthResult, effective_length, length_record, summary_record
from lab.assembly import computes_in_bf16, make_needle_probe, method_name, set_threads, training_device
from lab.errors import ConfigError, LabError
from lab.loading import Trained, load_trained
from lab.model.generate import greedy
from lab.runs.folder import RunFolder
from lab.settings import parse_overrides, take_option

WRONG = 2


def probe_model(model: Path, settings: dict[str, Any], output: Path | None) -> str:
    """Probe a model, write the records, and return the table to print.

    Raises: LabError.
    """
    seed = settings.pop("seed", None)
    overrides = {key if key.startswith("position.") else f"probe.{key}": value for key, value in settings.items()}
    if seed is not None:
        overrides["run.seed"] = seed
    trained = load_trained(model, overrides)
    experiment = trained.experiment
    set_threads(experiment.train.threads, 1)
    device = training_device(experiment)
    trained.decoder.to(device)
    probe = make_needle_probe(experiment, device)

    def generate(prompts: Tensor, n_tokens: int) -> Tensor:
        with precision(trained, device):
            return greedy(trained.decoder, prompts, n_tokens, probe.stop_id)

    results = []
    with tqdm(total=len(probe.lengths), desc="probe", unit="length") as bar:
        for result in probe.run(generate):
            results.append(result)
            bar.update()
            bar.set_postfix_str(f"{result.length} tokens: {result.accuracy:.2f}")
    output = output or default_output(trained)
    write(output, trained, results, probe.seed)
    return table(results, experiment.probe.threshold) + f"\nwritten to {output}"


def precision(trained: Trained, device: torch.device) -> Any:
    """Compute in the precision the run trained in."""
    if computes_in_bf16(trained.experiment, device):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def default_output(trained: Trained) -> Path:
    """Name the output by the checkpoint and the probe's settings, so that the same probe lands in the same place."""
    experiment = trained.experiment
    settings = {**experiment.to_dict()["probe"], "seed": experiment.run.seed, "method": method_name(experiment)}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return trained.folder / "eval" / f"probe-{trained.checkpoint.consumed_tokens:015d}-{digest}"


def write(output: Path, trained: Trained, results: Iterable[LengthResult], seed: int) -> None:
    """Write the records that training's probe writes."""
    results = list(results)
    consumed, threshold = trained.checkpoint.consumed_tokens, trained.experiment.probe.threshold
    method = method_name(trained.experiment)
    records = [length_record(result, consumed, method, seed) for result in results]
    summary = summary_record(results, consumed, threshold)
    folder = RunFolder(output)
    folder.write_records("probes.jsonl", [*records, summary])
    folder.write_cases(consumed, [case for result in results for case in result.cases])


def table(results: Sequence[LengthResult], threshold: float) -> str:
    """Lay the curve out for reading."""
    lines = [f"{'length':>8} {'passed':>8} {'tests':>8} {'accuracy':>9}"]
    lines += [f"{r.length:>8,} {r.passed:>8,} {r.tests:>8,} {r.accuracy:>9.3f}" for r in results]
    return "\n".join([*lines, f"effective length {effective_length(results, threshold):,} at threshold {threshold:g}"])


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0 if words else WRONG
    try:
        place = take_option(words, "-o")
        output = Path(place) if place else None
        if words[0].startswith("-"):
            raise ConfigError(f"{words[0]}: MODEL must be the first argument, a run folder or a checkpoint in it")
        print(probe_model(Path(words[0]), parse_overrides(words[1:]), output))
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
