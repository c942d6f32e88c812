"""Save and resume the 1.49B model under FSDP on one rank: seconds and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.fits import Fit
from benchmarks.gpu.sizes import LARGE
from benchmarks.gpu.stage import Case, Options, run
from lab.data import synthetic
from lab.data.config import Synthetic
from lab.data.synthetic import SyntheticText
from lab.data.tokenizer import EOS, train_bpe

DOCUMENTS = 200  # that the tokenizer is trained on


def write_tokenizer(path: Path) -> Path:
    """Train a small tokenizer, for the real one cannot be shipped; the model keeps its full vocabulary."""
    generator = SyntheticText(Synthetic(median_tokens=532.48, section_tokens=2048.0))
    documents = map(generator.document, range(DOCUMENTS))
    probe = synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION + synthetic.ANSWER_PREFIX
    path.parent.mkdir(parents=True, exist_ok=True)
    train_bpe([probe, *documents], vocab_size=640).save(str(path))
    return path


def save_and_resume(options: Options) -> dict[str, Any]:
    """Kill a run at its first checkpoint and resume it for one step; its checkpoints are deleted afterwards."""
    tokenizer = write_tokenizer(options.work / "tokenizer" / "tokenizer.json")
    settings = [*options.size.large, f"--data.tokenizer.path={tokenizer}", f"--data.tokenizer.eos={EOS}"]
    fit = Fit(options, LARGE, "large", settings)
    try:
        figures = fit.kill_at_checkpoint()
        resume_s = fit.resume_until_step(figures["killed_at_step"] + 1)
    finally:
        shutil.rmtree(fit.folder / "checkpoints", ignore_errors=True)
    last = fit.metrics()[-1]
    parameters = options.size.large_model().n_parameters()
    return {"parameters": parameters, **figures, "first_step_after_resume_s": resume_s, "loss": last["loss"]}


def cases(options: Options) -> list[Case]:
    """List the one run."""
    return [("fsdp", lambda: save_and_resume(options))]


if __name__ == "__main__":
    run(cases)
