"""Probe one checkpoint of a run in a process of its own, for `probe.process: separate`.

    python -m lab.probe_saved FOLDER TOKENS PARENT

The run starts it, reads the file that it writes, and records what is in it. It computes on a GPU of this machine that
the run does not use, if there is one, and otherwise on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.config import Experiment, load_experiment
from lab.counts import SavedCounts
from lab.files import write_json
from lab.lifetime import end_with
from lab.loading import open_run
from lab.probe.effective_length import Worker
from lab.probe.measuring import Found, Measuring, ModelInTraining
from lab.train.assembly import describe_probed, make_held_out, make_needle_probe
from lab.train.callbacks.guarding import Deadline, describe
from lab.train.callbacks.separate import result_file
from lab.train.checkpoints import COUNTS, folder_name
from lab.train.choices import choose_backend, computes_in_bf16
from lab.train.folder import RunFolder
from lab.train.threads import set_threads


def probe_saved(folder: Path, consumed: int) -> Found | None:
    """Run the probe of a run's checkpoint.

    Raises: LabError; TimeoutError after probe.max_seconds.
    """
    experiment = load_experiment(folder / "config.yaml")
    set_threads(experiment.train.threads or RunFolder(folder).threads())
    checkpoint, device = folder / "checkpoints" / folder_name(consumed), unused_device(experiment)
    backend, _ = choose_backend(experiment, device)
    opened = open_run(checkpoint, {}, device, backend)
    probe = make_needle_probe(experiment, device)
    loss = make_held_out(experiment, 0, 1, device)
    measuring = Measuring(probe, loss, partial(describe_probed, experiment, folder.name))
    deadline = Deadline("probe.max_seconds", experiment.probe.max_seconds)
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    if computes_in_bf16(experiment, device):
        context = partial(torch.autocast, device.type, torch.bfloat16)
    model = ModelInTraining(opened.decoder, probe.stop_id, context, before=deadline.check)
    return measuring.run(model, Worker(), consumed, SavedCounts.read(checkpoint / COUNTS), lambda line: True)


def unused_device(experiment: Experiment) -> torch.device:
    """Choose a GPU after those that train on this machine, or the CPU."""
    if experiment.train.accelerator != "cpu" and torch.cuda.device_count() > experiment.train.devices:
        return torch.device("cuda", experiment.train.devices)
    return torch.device("cpu")


def main() -> None:
    """Write what the probe found, or why it failed."""
    folder, consumed, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    end_with(parent)
    result: dict[str, Any]
    try:
        found = probe_saved(folder, consumed)
        assert found is not None, "nothing ends it early"
        result = {"lines": found.lines, "cases": found.cases}
    except Exception as error:  # of any kind, as in the training's process
        result = {"failed": describe(error)}
    write_json(result_file(folder, consumed), result)


if __name__ == "__main__":
    main()
