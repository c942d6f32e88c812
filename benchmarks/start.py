"""From a command to its first step, and to the refusal of a wrong setting, on a CPU.

    python -m benchmarks.start [--rounds 5] [--json FILE]

The runs are of configs/cpu_test.yaml, each in a process of its own, in turns: `first run` also trains the tokenizer and
writes the shards, `run` finds them, `compiled run` has train.compile=true, and `refused` a number of heads that does
not fit. A run ends after its first step, so that its seconds contain writing a checkpoint too. Figures are medians, of
the clock and of the processes' CPU seconds, which other work on the machine changes least.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import record
from lab.train.environment import ROOT

CONFIG = ROOT / "configs" / "cpu_test.yaml"
REFUSAL = 2  # exit status of a config error
SETTINGS = (
    *("--train.tokens=1024", "--optim.warmup_steps=0", "--probe.every_tokens=null", "--probe.loss_tokens=0"),
    *("--probe.tests=1", "--probe.max_length=128", "--probe.distance_tests=0", "--probe.distance_points=null"),
)
CASES = {  # settings, whether the shards exist, exit status
    "first run": ((), False, 0),
    "run": ((), True, 0),
    "compiled run": (("--train.compile=true",), True, 0),
    "refused": (("--model.n_heads=3",), True, REFUSAL),
}


def timed(options: tuple[str, ...], place: Path, shards: Path, status: int) -> tuple[float, float]:
    """Run a command; return the seconds of the clock and of its processes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    folders = (f"--run.folder={place}", f"--data.folder={shards}", "--run.name=r")
    words = [sys.executable, "-m", "lab.fit", str(CONFIG), *SETTINGS, *folders, *options]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == status, done.stderr
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print and record the table."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    log, spent = record.Log("start", options.json), {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(options.rounds):
            for case, (words, prepared, status) in CASES.items():
                place = Path(name) / f"{turn} {case}"
                shards = Path(name) / "0 first run" / "shards" if prepared else place / "shards"
                spent[case].append(timed(words, place, shards, status))
    print(f"{'':14} {'seconds':>8} {'CPU-s':>8}")
    for case, pairs in spent.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{case:14} {wall:8.2f} {cpu:8.2f}")
        log.add("cpu_test", case, {"wall_s": wall, "cpu_s": cpu, "rounds": options.rounds})


if __name__ == "__main__":
    main()
