"""Cost of every distance method against plain attention on the same backend: prefill, decode, memory.

    python -m benchmarks.position_methods [--lengths 1024,4096] [--methods string,dca] [--layers 2] [--json FILE]

A decoder of TinyLlama's head width reads a text of each length (prefill), then generates with a key cache (decode).
Times are ratios to plain measured in turns in the same process, the median of the turns; memory is the peak of a
process of its own on a CPU and of the allocator on a GPU. STRING shifts by a third of the length, DCA has a
pretraining window of 2/3 of it, the windows of the others are a quarter, as at the end of an extended text.
"""

import resource
import statistics
import subprocess
import sys
from typing import Any

import torch

from benchmarks import record
from benchmarks.timing import best_device, heading, ratio, timed
from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import Distance, distance

DECODE_STEPS = 16


def method(name: str, length: int) -> Distance:
    """Build a method with parameters that fit a length."""
    window = max(1, length // 4)
    parameters: dict[str, dict[str, float]] = {
        "plain": {},
        "string": {"shift": max(1, length // 3), "window": min(128, length // 3)},
        "dca": {"train_len": max(4, 2 * length // 3)},
        "self_extend": {"group": 4, "window": window},
        "rerope": {"window": window},
        "leaky_rerope": {"window": window, "leak": 4.0},
    }
    return distance(name, **parameters[name])


def shape(layers: int, heads: int) -> DecoderConfig:
    """Describe a decoder of head width 64 with four query heads to a key-value head."""
    return DecoderConfig(
        d_model=64 * heads,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=max(1, heads // 4),
        d_ff=176 * heads,
        vocab_size=512,
        tie_embeddings=True,
    )


def model(layers: int, device: torch.device, heads: int) -> Decoder:
    """Build the decoder in the precision that a device computes in."""
    return Decoder(shape(layers, heads)).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).eval()


@torch.no_grad()
def prefill(decoder: Decoder, tokens: torch.Tensor) -> Any:
    """Read the text."""
    cache = decoder.new_cache(1, tokens.shape[1] + DECODE_STEPS)
    decoder(tokens, cache=cache, last_only=True)
    return cache


@torch.no_grad()
def decode(decoder: Decoder, cache: Any, length: int, token: torch.Tensor) -> None:
    """Generate DECODE_STEPS tokens after the text."""
    cache.length = length
    for _ in range(DECODE_STEPS):
        decoder(token, cache=cache, last_only=True)


def measure(names: list[str], length: int, layers: int, heads: int, turns: int) -> list[dict[str, Any]]:
    """Time prefill and decode of every method in turns."""
    device = best_device()
    decoder = model(layers, device, heads)
    tokens = torch.randint(512, (1, length), device=device)
    seconds: dict[str, dict[str, list[float]]] = {name: {"prefill": [], "decode": []} for name in names}
    for turn in range(turns + 1):
        for name in names:
            decoder.distance = method(name, length)
            cache = None

            def read(decoder: Decoder = decoder) -> None:
                nonlocal cache
                cache = prefill(decoder, tokens)

            read_s = timed(read, device)
            decode_s = timed(lambda cache=cache: decode(decoder, cache, length, tokens[:, :1]), device) / DECODE_STEPS
            if turn:  # the first turn warms up
                seconds[name]["prefill"].append(read_s)
                seconds[name]["decode"].append(decode_s)
    rows = []
    for name in names:
        row: dict[str, Any] = {"length": length, "method": name}
        for kind in ("prefill", "decode"):
            row[f"{kind}_s"] = statistics.median(seconds[name][kind])
            row[f"{kind}_ratio"] = ratio(seconds[name][kind], seconds[names[0]][kind])
        rows.append(row)
    return rows


def peak_bytes(name: str, length: int, layers: int, heads: int) -> int:
    """Prefill once, and read the peak memory of the GPU, or of this process."""
    device = best_device()
    decoder = model(layers, device, heads)
    decoder.distance = method(name, length)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    prefill(decoder, torch.randint(512, (1, length), device=device))
    return torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--peak"]:
        name, *numbers = sys.argv[2:]
        print(peak_bytes(name, *map(int, numbers)))
        return
    on_gpu = torch.cuda.is_available()
    parser = record.parser_of(__doc__)
    default = "2048,8192,32768,131072" if on_gpu else "1024,2048,4096,8192,16384,32768"
    parser.add_argument("--lengths", default=default)
    parser.add_argument("--methods", default="string,dca,self_extend,rerope,leaky_rerope")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=32 if on_gpu else 8)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    names = ["plain", *(name for name in options.methods.split(",") if name != "plain")]
    log = record.Log("position_methods", options.json)
    print(f"{heading(best_device())}, {options.layers} layers,", end=" ")
    print(f"{options.heads} heads of 64, {max(1, options.heads // 4)} key-value heads, batch 1")
    heads = [f"{'length':>8} {'method':>13}", *(f"{kind:>9} {'ratio':>6}" for kind in ("prefill", "decode", "memory"))]
    print(*heads)
    for length in map(int, options.lengths.split(",")):
        base = None
        for row in measure(names, length, options.layers, options.heads, options.turns):
            sizes = (length, options.layers, options.heads)
            words = [sys.executable, "-m", "benchmarks.position_methods", "--peak", row["method"], *map(str, sizes)]
            done = None if on_gpu else subprocess.run(words, capture_output=True, text=True, check=True)
            row["peak_bytes"] = int(done.stdout) if done else peak_bytes(row["method"], *sizes)
            base = base or row["peak_bytes"]
            log.add(row["method"], f"{length:,}", {"layers": options.layers, "heads": options.heads, **row})
            print(
                f"{length:>8,} {row['method']:>13} {row['prefill_s']:>8.3f}s {row['prefill_ratio']:>6.2f} "
                f"{row['decode_s'] * 1e3:>7.2f}ms {row['decode_ratio']:>6.2f} {row['peak_bytes'] / 2**20:>6.0f}MiB "
                f"{row['peak_bytes'] / base:>6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
