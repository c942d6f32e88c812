"""The sections of a run that no other part owns; no torch."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from lab.core.errors import LONGEST_NAME, is_plain_name
from lab.core.schema import Length, PathText, Positive, Section, Seed


class TrainConfig(Section):
    """Length of the training, devices, checkpoints."""

    tokens: Positive = 1_000_000
    """Tokens to train on; the steps are this over batch_tokens, rounded up."""
    batch_tokens: Positive = 2048
    """Tokens of a global batch, one optimizer step."""
    micro_batch_tokens: Length = 2048
    """Tokens of a pack, what one device takes at a time; accumulation follows from the devices."""
    devices: Annotated[int, Ge(1), Le(256)] = 1
    """Processes on a node, one for each device."""
    nodes: Positive = 1
    """Nodes; torchrun starts the processes of each, where there are several."""
    context_parallel: Positive = 1
    """Consecutive processes that share each pack, every one with its part of the tokens and, in attention, heads."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """What to run on; auto takes a GPU where there is one."""
    strategy: Literal["auto", "single", "ddp", "fsdp"] = "auto"
    """single, ddp, or fsdp (FSDP2); auto is fsdp in bf16 on GPUs, otherwise single for one process and ddp for more."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 computes in bfloat16 and keeps float32 weights."""
    backend: Literal["auto", "reference", "sdpa", "varlen", "flash", "xformers"] = "auto"
    """Attention kernel; auto chooses by device and prints which and why."""
    compile: Literal["auto", True, False] = "auto"
    """Whether transformer blocks are compiled, by graphs that serve all blocks and packs; auto does so on a GPU."""
    recompute: bool = False
    """Whether the backward pass computes each block's activations again: a third more work, far less memory."""
    threads: Annotated[int, Ge(1), Le(1024)] | None = None
    """CPU threads of each process, part of what makes two runs equal bit by bit; default: cores over processes."""
    checkpoint_every_tokens: Positive | None = None
    """Consumed tokens between checkpoints; default: only at the end and when stopped."""
    keep_checkpoints: Annotated[Positive, Ge(2)] = 2
    """Newest checkpoints that are kept."""
    final_checkpoints: bool = False
    """Whether five checkpoints, ten steps apart up to the last, are kept as well (arXiv:2411.13476, section 4.2)."""
    async_checkpoints: bool = False
    """Whether to train on while a checkpoint is written, from a copy of weights and optimizer in CPU memory."""

    def rules(self) -> Iterator[str]:
        """Reject batches that cannot be divided among the processes, and kernels and strategies that do not fit."""
        if self.world_size % self.context_parallel:
            rule = f"must divide devices * nodes={self.world_size}; change one of them"
            yield self.format_error("context_parallel", rule)
        packs = self.micro_batch_tokens * self.data_parallel
        if self.batch_tokens % packs:
            rule = f"must be a multiple of micro_batch_tokens={self.micro_batch_tokens}"
            if self.data_parallel > 1:
                rule += f" * {self.data_parallel} processes (devices * nodes / context_parallel)"
            yield self.format_error("batch_tokens", f"{rule}; use {-(-self.batch_tokens // packs) * packs}")
        if self.strategy == "single" and self.world_size > 1:
            rule = f"runs one process, devices * nodes is {self.world_size}; use ddp or fsdp"
            yield self.format_error("strategy", rule)
        if self.accelerator == "cpu" and self.backend in ("varlen", "flash", "xformers"):
            yield self.format_error("backend", "runs on a CUDA device only; use sdpa or auto")

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject packs without room for a window, runs of no step, and what cannot be shared, or merged from bands."""
        if self.micro_batch_tokens < run.data.window:
            yield run.format_error("train.micro_batch_tokens", f"must be >= data.window={run.data.window}; raise it")
        if self.tokens < self.batch_tokens:
            yield run.format_error("train.tokens", f"must be >= train.batch_tokens={self.batch_tokens}; raise it")
        for name in ("model.n_kv_heads", "data.window", "train.micro_batch_tokens"):
            if (value := attrgetter(name)(run)) % self.context_parallel:
                yield run.format_error("train.context_parallel", f"must divide {name}={value}; change one")
        if self.backend == "xformers" and run.bands:
            yield run.format_error("train.backend", f"returns no log-sum-exp, which {run.bands} needs; use auto")

    @property
    def world_size(self) -> int:
        return self.devices * self.nodes

    @property
    def data_parallel(self) -> int:
        return max(1, self.world_size // self.context_parallel)

    def resolved_strategy(self, on_gpu: bool) -> str:
        """Return the strategy on a GPU, or on a CPU, with `auto` resolved."""
        if self.strategy != "auto":
            return self.strategy
        # Also for one GPU: fsdp keeps bf16 weights, and autocast would convert the weights for every use.
        if on_gpu and self.bf16:
            return "fsdp"
        return "ddp" if self.world_size > 1 else "single"

    @property
    def sharded_over(self) -> int:
        """Consecutive processes that share the weights under fsdp, replicated beyond them (HSDP)."""
        # from 64 processes on, a ring over all of them is bound by latency
        return self.devices if self.world_size >= 64 else self.world_size

    def keeps_whole(self, n_parameters: int) -> bool:
        """Return whether fsdp keeps whole weights, and gradients between micro-batches, until a step ends."""
        bytes_each = 2 if self.bf16 else 4
        # Gradients are summed in float32, and stay unsharded between the micro-batches of a step.
        if self.accumulation > 1 and self.sharded_over > 1:
            bytes_each += 4
        return n_parameters * bytes_each <= 10 * 2**30  # 8.4 GiB for 1.49B parameters

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"

    @property
    def n_packs(self) -> int:
        return self.batch_tokens // self.micro_batch_tokens

    @property
    def accumulation(self) -> int:
        return self.n_packs // self.data_parallel

    @property
    def steps(self) -> int:
        return -(-self.tokens // self.batch_tokens)

    @property
    def final_steps(self) -> tuple[int, ...]:
        return tuple(range(self.steps - 40, self.steps + 1, 10)) if self.final_checkpoints else ()


class StartConfig(Section):
    """Trained weights to start from."""

    path: PathText
    """Run folder, checkpoint in it, or Hugging Face folder; shape, tokenizer and positions default to its own."""
    optimizer: bool = False
    """Whether AdamW's moments and steps are the run's too, and if the data are the same, its data order and counts."""


class TrackConfig(Section):
    """Logging, and a dashboard."""

    every_steps: Positive = 10
    """Optimizer steps between lines of metrics.jsonl."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Whether Weights & Biases mirrors the run folder."""


class RunConfig(Section):
    """Name, seed and folder of the run."""

    name: str
    """Name of the run's folder; default: that of the config file; auto adds 8 digits that identify the settings."""
    seed: Seed = 0
    """Seed of the weights and the data order; probe.seed is that of the tests."""
    folder: PathText = "runs"
    """Folder that holds the run folders."""

    def rules(self) -> Iterator[str]:
        """Reject a name that is not a folder name."""
        if not is_plain_name(self.name):
            yield self.format_error(
                "name", f"must be a plain folder name of at most {LONGEST_NAME} bytes; set run.folder for its path"
            )

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name
