"""Tests per second of greedy generation against transformers' `generate`: the same weights, prompts and new tokens.

    python -m benchmarks.generation [--shapes demo,large] [--lengths 256,1024,4096] [--batches 1,8,100]
        [--new-tokens 24] [--turns 5] [--most-tokens 30000] [--threads 1] [--dtype float32] [--json FILE]

Both run in turns in this process, and a ratio is the median of the turns' ratios: seconds of transformers over ours.
`prefill` is a call for one new token, `step` what each further token adds, `whole` all of them without a stop token.
Weights and prompts are random, and `stopping` is generation up to a stop token, the commonest in the answers. `same` is
the share of answers that are equal token for token up to the stop. Cells of more than --most-tokens prompt tokens are
left out and said to be.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.timing import best_device, heading
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.generate import greedy
from lab.model.huggingface.pretrained import save_pretrained

SHAPES = {
    "demo": DecoderConfig(128, 2, 4, 4, 344, 600, tie_embeddings=False, theta=1000.0, embedding_std=1.0),
    "large": DecoderConfig(512, 6, 8, 8, 1376, 4096, tie_embeddings=False, embedding_std=1.0),
}
KINDS = ("prefill", "step", "whole", "stopping")
Generate = Callable[[Tensor, int, int | None], Tensor]


@dataclass(frozen=True)
class Subject:
    """A model on both sides, and where its prompts come from."""

    name: str
    ours: Decoder
    theirs: Any
    prompts: Callable[[int, int], Tensor]

    def sides(self) -> dict[str, Generate]:
        """Name both ways to generate."""
        return {"ours": self.generate_ours, "theirs": self.generate_theirs}

    def generate_ours(self, prompts: Tensor, n_tokens: int, stop_id: int | None) -> Tensor:
        """Generate with the lab's engine."""
        return greedy(self.ours, prompts, n_tokens, stop_id)

    def generate_theirs(self, prompts: Tensor, n_tokens: int, stop_id: int | None) -> Tensor:
        """Generate with transformers: greedy, with its key cache."""
        with torch.no_grad():
            out: Tensor = self.theirs.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=n_tokens,
                do_sample=False,
                use_cache=True,
                eos_token_id=stop_id,
                pad_token_id=0 if stop_id is None else stop_id,
            )
        return out[:, prompts.shape[1] :]


def in_transformers(decoder: Decoder) -> Any:
    """Load the same weights with transformers."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(decoder, Path(folder) / "model", train_len=8192)
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


def random_subject(shape: str, device: torch.device, dtype: torch.dtype) -> Subject:
    """Draw weights and prompts; every prompt differs from its first token on."""
    decoder = Decoder(SHAPES[shape], seed=0).eval()
    theirs = in_transformers(decoder).to(device, dtype)
    decoder.to(device, dtype)

    def prompts(batch: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(length)
        return torch.randint(decoder.cfg.vocab_size, (batch, length), generator=generator).to(device)

    return Subject(shape, decoder, theirs, prompts)


def timed(generate: Generate, *arguments: Any) -> tuple[float, Tensor]:
    """Measure one call in seconds."""
    start = time.perf_counter()
    answer = generate(*arguments)
    if answer.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, answer


def measure(subject: Subject, batch: int, length: int, n_tokens: int, turns: int) -> dict[str, Any]:
    """Time both sides in turns."""
    prompts, sides = subject.prompts(batch, length), subject.sides()
    answers = {side: generate(prompts, n_tokens, None) for side, generate in sides.items()}  # warms up, too
    stop_id = int(answers["ours"].flatten().mode()[0])
    seconds: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in KINDS} for side in sides}
    for turn in range(turns):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            prefill_s, _ = timed(sides[side], prompts, 1, None)
            whole_s, _ = timed(sides[side], prompts, n_tokens, None)
            stopping_s, answers[side] = timed(sides[side], prompts, n_tokens, stop_id)
            step_s = max(whole_s - prefill_s, 1e-9) / (n_tokens - 1)
            for kind, value in zip(KINDS, (prefill_s, step_s, whole_s, stopping_s), strict=True):
                seconds[side][kind].append(value)
    row: dict[str, Any] = {"subject": subject.name, "batch": batch, "length": length, "new_tokens": n_tokens}
    for kind in KINDS:
        ours, theirs = seconds["ours"][kind], seconds["theirs"][kind]
        row[f"{kind}_s"] = statistics.median(ours)
        row[f"{kind}_ratio"] = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    kept = [[cut(ids, stop_id) for ids in answers[side].tolist()] for side in sides]
    row["tests_per_s"] = batch / row["stopping_s"]
    row["same"] = statistics.mean(a == b for a, b in zip(*kept, strict=True))
    return row


def cut(ids: list[int], stop_id: int) -> list[int]:
    """Keep an answer up to its stop token."""
    return ids[: ids.index(stop_id)] if stop_id in ids else ids


def main() -> None:
    """Print the table."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--shapes", default="demo,large")
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--batches", default="1,8,100")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--most-tokens", type=int, default=30000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, log = best_device(), record.Log("generation", options.json)
    print(f"{heading(device)}, {options.dtype}, {options.new_tokens} new tokens")
    heads = "".join(f" {kind:>10} {'ratio':>6}" for kind in KINDS)
    print(f"{'model':>9} {'batch':>5} {'length':>6}{heads} {'tests/s':>8} {'same':>5}")
    for shape in options.shapes.split(","):
        subject = random_subject(shape, device, getattr(torch, options.dtype))
        for length in map(int, options.lengths.split(",")):
            for batch in map(int, options.batches.split(",")):
                if batch * length > options.most_tokens:
                    print(f"{subject.name:>9} {batch:>5} {length:>6} left out: {batch * length:,} prompt tokens")
                    continue
                row = measure(subject, batch, length, options.new_tokens, options.turns)
                log.add(subject.name, f"{batch} x {length:,}", {"threads": options.threads, **row})
                times = "".join(f" {1e3 * row[f'{kind}_s']:>8.2f}ms {row[f'{kind}_ratio']:>6.2f}" for kind in KINDS)
                end = f"{row['tests_per_s']:>8.2f} {row['same']:>5.2f}"
                print(f"{subject.name:>9} {batch:>5} {length:>6}{times} {end}", flush=True)


if __name__ == "__main__":
    main()
