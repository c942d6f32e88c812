"""Save and resume the 1.49B model under FSDP on one rank: seconds and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.gpu.fits import kill_at_checkpoint, metrics, resume_until_step, words_of
from benchmarks.gpu.sizes import LARGE
from benchmarks.gpu.stage import Case, Options, run
from lab.data import wording
from lab.data.config import Synthetic
from lab.data.corpora import synthetic_text
from lab.data.tokenizer import EOS, train_bpe

DOCUMENTS = 200  # that the tokenizer is trained on


def write_tokenizer(path: Path) -> Path:
    """Train a small tokenizer, for the real one cannot be shipped; the model keeps its full vocabulary."""
    documents = synthetic_text(Synthetic(), window=2048).documents(0, DOCUMENTS)
    probe = wording.TASK + wording.NEEDLE + wording.QUESTION + wording.ANSWER_PREFIX
    path.parent.mkdir(parents=True, exist_ok=True)
    train_bpe([probe, *documents], vocab_size=640).save(str(path))
    return path


def save_and_resume(options: Options) -> dict[str, Any]:
    """Kill a run at its first checkpoint and resume it for one step; its checkpoints are deleted afterwards."""
    tokenizer = write_tokenizer(options.work / "tokenizer" / "tokenizer.json")
    settings = [*options.size.large, f"--data.tokenizer.path={tokenizer}", f"--data.tokenizer.eos={EOS}"]
    words, folder = words_of(options, LARGE, "large", settings), options.work / "runs" / "large"
    try:
        figures = kill_at_checkpoint(words, folder)
        resume_s = resume_until_step(words, folder, figures["killed_after_steps"] + 1)
        last = metrics(folder)[-1]
    finally:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    parameters = options.size.large_model().n_parameters()
    return {**figures, "first_step_after_resume_s": resume_s, "parameters": parameters, "loss": last["loss"]}


def cases(options: Options) -> list[Case]:
    """List the one run."""
    return [("fsdp", lambda: save_and_resume(options))]


if __name__ == "__main__":
    run(cases)
