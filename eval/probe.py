"""Probe a trained model's effective context length with four needles.

    python -m eval.probe MODEL [--setting=value ...] [-o FOLDER] [--plot]

MODEL is a run folder (its newest checkpoint is taken) or a checkpoint in it. The settings are those of the run's own
`probe` section, and its position methods, any of which can be changed:

    python -m eval.probe runs/cpu_demo
    python -m eval.probe runs/cpu_demo --tests=500 --max_length=320 --step=16 --plot
    python -m eval.probe runs/cpu_demo --tests=500 --sequential --error=0.01
    python -m eval.probe runs/cpu_demo --thresholds=[0.5,0.9] --confidence=0.99
    python -m eval.probe runs/cpu_demo --protocol=string --haystack=essays.txt
    python -m eval.probe runs/cpu_demo/checkpoints/tokens-000004000000 --haystack=essays.txt --seed=1
    python -m eval.probe runs/cpu_demo --position.distance.method=rerope --position.distance.window=96

--sequential stops a length as soon as the verdict that all tests would give is known up to --error. --protocol=string
takes the wording, numbers, depths and counting of papers/string.txt (eval/string_needles.py says what differs).

Writes probes.jsonl and cases/ as training does, and with --plot probe.png, to FOLDER; left out, to
eval/probe-TOKENS-HASH in the run folder. Every finished test is kept in tests-TOKENS-KEY.jsonl, in FOLDER or in eval/:
after Ctrl-C (exit status 75) or a crash the same command goes on, and a command that asks for more tests, lengths or
thresholds takes up those that are there.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from eval.effective_length import LengthResult, NeedleProbe
from eval.finished_tests import FinishedTests, key_of
from eval.probe_picture import draw_probe
from eval.probe_records import length_record, summary_record
from eval.probe_table import table
from eval.protocol import Generates
from lab.assembly import computes_in_bf16, make_needle_probe, method_name, set_threads, training_device
from lab.errors import ConfigError, LabError
from lab.loading import Trained, load_trained
from lab.model.generate import greedy
from lab.runs.folder import RunFolder
from lab.settings import parse_overrides, take_option

WRONG, STOPPED = 2, 75
FLAGS = ("--sequential",)  # settings that need no value on this command line


class Stopped(Exception):
    """A signal came; what is said is how to go on."""


def probe_model(model: Path, settings: dict[str, Any], output: Path | None, *, plots: bool = False) -> str:
    """Probe a model, write the records, and return the table to print.

    Raises: LabError, Stopped.
    """
    trained = load_trained(model, overrides_of(settings))
    experiment = trained.experiment
    set_threads(experiment.train.threads, 1)
    device = training_device(experiment)
    trained.decoder.to(device)
    probe = make_needle_probe(experiment, device)
    where = output or default_output(trained)
    key = key_of(
        probe,
        weights=trained.checkpoint.digest,
        method=method_name(experiment),
        in_bf16=computes_in_bf16(experiment, device),
        device=device.type,
    )
    finished = FinishedTests(output or where.parent, trained.checkpoint.consumed_tokens, key)

    def generate(prompts: Tensor, n_tokens: int) -> Tensor:
        with precision(trained, device):
            return greedy(trained.decoder, prompts, n_tokens, probe.stop_id)

    results = run(probe, generate, finished)
    records = write(where, trained, probe, results)
    lines = [table(results, probe.config, records[-1]), f"written to {where}"]
    if plots:
        title = f"{trained.folder.name}: {method_name(experiment)}; {trained.checkpoint.consumed_tokens:,} tokens"
        draw_probe(results, records[-1], title, probe.window, where / "probe.png")
        lines.append(f"picture: {where / 'probe.png'}")
    return "\n".join(lines)


def overrides_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Name the settings of this command as those of a run; another protocol comes with its own sizes.

    Example:
        >>> overrides_of({"tests": 9, "seed": 1, "protocol": "string", "digits": 6})
        {'probe.tests': 9, 'run.seed': 1, 'probe.protocol': 'string', 'probe.digits': 6, 'probe.needles': None}
    """
    names = {key: "run.seed" if key == "seed" else f"probe.{key}" for key in settings if "position." not in key}
    overrides = {names.get(key, key): value for key, value in settings.items()}
    sizes = ("probe.needles", "probe.digits") if "protocol" in settings else ()
    return overrides | {size: None for size in sizes if size not in overrides}


def run(probe: NeedleProbe, generate: Generates, finished: FinishedTests) -> list[LengthResult]:
    """Run all tests that are not finished yet.

    Raises: Stopped.
    """
    results: list[LengthResult] = []
    try:
        with tqdm(total=len(probe.lengths) * probe.config.tests, desc="probe", unit="test") as bar:
            finished.report = bar.update
            for result in probe.run(generate, memory=finished):
                results.append(result)
                bar.total -= probe.config.tests - result.tests
                bar.update(sum(r.tests for r in results) - bar.n)
                bar.set_postfix_str(f"{result.length} tokens: {result.accuracy:.2f}")
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise Stopped(f"stopped; {kept}; the same command goes on") from signal_
    return results


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


def write(output: Path, trained: Trained, probe: NeedleProbe, results: Sequence[LengthResult]) -> list[dict[str, Any]]:
    """Write the records that training's probe writes, and return them; the last is the summary."""
    consumed, method = trained.checkpoint.consumed_tokens, method_name(trained.experiment)
    records = [length_record(probe, result, consumed, method) for result in results]
    records.append(summary_record(probe, results, consumed, method))
    folder = RunFolder(output)
    folder.write_records("probes.jsonl", records)
    folder.write_cases(consumed, [case for result in results for case in result.cases])
    return records


def spell_out(words: Sequence[str]) -> list[str]:
    """Write out the settings that need no value.

    Example:
        >>> spell_out(["runs/x", "--sequential", "--error=0.01"]), spell_out(["--sequential", "false"])
        (['runs/x', '--sequential=true', '--error=0.01'], ['--sequential', 'false'])
    """
    following = [*words, "-"][1:]
    bare = [word in FLAGS and after.startswith("-") for word, after in zip(words, following)]
    return [f"{word}=true" if is_bare else word for word, is_bare in zip(words, bare, strict=True)]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0 if words else WRONG
    try:
        place, plots = take_option(words, "-o"), "--plot" in words
        words = spell_out([word for word in words if word != "--plot"])
        if not words or words[0].startswith("-"):
            named = words[0] if words else "MODEL"
            raise ConfigError(f"{named}: MODEL must be the first argument, a run folder or a checkpoint in it")
        print(probe_model(Path(words[0]), parse_overrides(words[1:]), Path(place) if place else None, plots=plots))
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    except (Stopped, KeyboardInterrupt) as stop:
        print(str(stop) or "stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main(sys.argv[1:]))
