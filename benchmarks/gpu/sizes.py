"""How large the measured runs are on a GPU, and in the same command on a CPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import load_experiment

ROOT = Path(__file__).resolve().parents[2]
Settings = dict[str, Any]
"""Values by dotted name."""
SMALL, LARGE, LARGE_4K = (ROOT / f"configs/{name}.yaml" for name in ("h200_small", "tiny_2k", "tiny_4k"))
LARGE_RUN = {  # a corpus that takes seconds
    "data.held_out_frac": 0.01,
    "probe.loss_tokens": 0,
    "track.every_steps": 1,
    "data.corpus.name": "synthetic",
    "optim.warmup_steps": 1,
    "probe.protocol": "ours",
    "probe.haystack": None,
    "train.devices": 1,
    "train.nodes": 1,
    "train.micro_batch_tokens": 16_384,  # one card of 80 GB holds the states that 16 share
    "track.wandb": "off",
}


@dataclass(frozen=True)
class Size:
    """Settings of the large runs, documents of a corpus for a window of 2,048, and how many updates to measure."""

    large: Settings
    documents: int
    updates: int

    def large_settings(self, config: Path, settings: Settings) -> Settings:
        """Add to the settings of a run of the large model a corpus whose documents fit its window."""
        window = load_experiment(config, self.large | settings).data.window
        corpus = {
            "data.corpus.documents": max(self.documents * 2048 // window, 64),
            "data.corpus.median_tokens": 0.26 * window,
            "data.corpus.section_tokens": window,
        }
        return {**self.large, **corpus, **settings}


@dataclass(frozen=True)
class Options:
    """Where the benchmark may write, and how large its runs are."""

    out: Path
    size: Size

    @property
    def work(self) -> Path:
        """Folder of shards, which is removed in the end."""
        return self.out / "work"


GPU = Size(large=LARGE_RUN, documents=400, updates=5)
TOY_RUN = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.n_heads": 4,
    "model.n_kv_heads": 2,
    "model.d_ff": 64,
    "data.window": 96,
    "data.corpus.documents": 200,
    "data.corpus.median_tokens": 24.96,
    "data.corpus.section_tokens": 96,
    "data.look_ahead": 16,
    "train.batch_tokens": 512,
    "train.micro_batch_tokens": 256,
    "train.accelerator": "cpu",
    "train.precision": "fp32",
    "train.threads": 1,
    "probe.tests": 1,
    "probe.distance_tests": 1,
    "probe.step": 216,
    "probe.max_length": 216,
    "probe.answer_budget": 40,
}
TOY = Size(large={**LARGE_RUN, **TOY_RUN, "model.vocab_size": 1024}, documents=10, updates=2)
