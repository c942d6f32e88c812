"""How large the stages' subjects are on a GPU, and in the same command on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lab.command import parse_overrides
from lab.config import load_experiment
from lab.model.config import DecoderConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = ROOT / "configs/h200_small.yaml", ROOT / "configs/tiny_2k.yaml"
SMALL_RUN = (  # a corpus and probes that take seconds
    "--optim.warmup_steps=4",
    "--data.held_out_frac=0.01",
    "--probe.loss_tokens=0",
    "--track.every_steps=1",
)
LARGE_RUN = (
    "--data.corpus.name=synthetic",
    "--data.held_out_frac=0.01",
    "--optim.warmup_steps=1",
    "--probe.protocol=ours",
    "--probe.haystack=null",
    "--train.devices=1",
    "--train.nodes=1",
    "--probe.loss_tokens=0",
    "--track.wandb=off",
    "--track.every_steps=1",
)


@dataclass(frozen=True)
class Size:
    """Lengths in tokens; `small` and `large` are settings of a run of configs/h200_small and configs/tiny_2k.

    `generated` answers of `shapes` are generated at a time beside transformers.
    """

    small: tuple[str, ...]
    large: tuple[str, ...]
    pack: int
    window: int
    windows: tuple[int, int]
    steps: int
    band_lengths: tuple[int, ...]
    band_layers: int
    band_heads: int
    prompts: tuple[int, ...]
    batch: int
    shapes: tuple[str, ...]
    generated: int
    new_tokens: int
    turns: int
    roof_part: int = 1

    def small_model(self) -> DecoderConfig:
        """Build the config of the model of configs/h200_small.yaml, 94M parameters on a GPU."""
        return load_experiment(SMALL, parse_overrides(self.small)).model

    def large_model(self) -> DecoderConfig:
        """Build the config of the model of configs/tiny_2k.yaml, 1.49B parameters on a GPU."""
        return load_experiment(LARGE, parse_overrides(self.large)).model


GPU = Size(
    small=(
        *SMALL_RUN,
        "--data.corpus.documents=2500",
        "--train.tokens=2621440",
        "--train.checkpoint_every_tokens=655360",
        "--probe.tests=20",
        "--probe.step=1280",
    ),
    large=(
        *LARGE_RUN,
        "--data.corpus.documents=400",
        "--data.corpus.median_tokens=532.48",
        "--data.corpus.section_tokens=2048",
        "--train.tokens=1638400",
        "--train.batch_tokens=16384",
        "--train.checkpoint_every_tokens=16384",
    ),
    pack=16_384,
    window=2048,
    windows=(4096, 32_768),
    steps=20,
    band_lengths=(2048, 16_384),
    band_layers=4,
    band_heads=32,
    prompts=(512, 2048),
    batch=200,
    shapes=("demo", "large"),
    generated=8,
    new_tokens=64,
    turns=5,
)
TOY_RUN = (
    "--model.d_model=32",
    "--model.n_layers=2",
    "--model.n_heads=4",
    "--model.n_kv_heads=2",
    "--model.d_ff=64",
    "--data.window=96",
    "--data.corpus.median_tokens=24.96",
    "--data.corpus.section_tokens=96",
    "--data.look_ahead=16",
    "--train.tokens=10240",
    "--train.batch_tokens=512",
    "--train.micro_batch_tokens=256",
    "--train.checkpoint_every_tokens=2048",
    "--train.accelerator=cpu",
    "--train.precision=fp32",
    "--train.threads=1",
    "--probe.tests=1",
    "--probe.step=216",
    "--probe.max_length=216",
    "--probe.answer_budget=40",
)
TOY = replace(
    GPU,
    small=(
        *SMALL_RUN,
        *TOY_RUN,
        "--data.corpus.documents=200",
        "--data.tokenizer.vocab_size=600",
    ),
    large=(*LARGE_RUN, *TOY_RUN, "--model.vocab_size=1024", "--data.corpus.documents=200"),
    pack=256,
    window=64,
    windows=(128, 256),
    steps=3,
    band_lengths=(64,),
    band_layers=1,
    band_heads=4,
    prompts=(32,),
    batch=2,
    shapes=("demo",),
    generated=2,
    new_tokens=4,
    turns=1,
    roof_part=8,
)
