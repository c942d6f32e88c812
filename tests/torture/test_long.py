"""A long run of tiny steps and many probes needs no more memory, open files or checkpoints at its end than before."""

import time

import psutil

from tests.fits import command
from tests.launching import environment, running

STEPS, FULL = 1_000, 20_000
PROBES = 500  # steps from one to the next
TINY = (
    *("--model.d_model=8", "--model.n_layers=1", "--model.n_heads=1", "--model.n_kv_heads=1", "--model.d_ff=8"),
    *("--train.batch_tokens=128", "--train.micro_batch_tokens=128", f"--probe.every_tokens={128 * PROBES}"),
    *(
        "--probe.tests=1",
        "--probe.distance_tests=1",
        "--probe.loss_tokens=256",
        f"--train.checkpoint_every_tokens={128 * PROBES}",
    ),
)
WARM = 0.25  # share of the steps after which nothing may grow
GROWTH = 1.01


def measure(process, run):
    """Return resident bytes, open files, and checkpoints."""
    return process.memory_info().rss, process.num_fds(), len(list((run / "checkpoints").glob("tokens-*")))


def median(values):
    return sorted(values)[len(values) // 2]


def test_a_long_run_grows_in_nothing(tmp_path, torture, record_property):
    steps, run, samples = torture(STEPS, FULL), tmp_path / "runs" / "long", []
    words = command(tmp_path, "long", *TINY, f"--train.tokens={128 * steps}")
    with running(tmp_path, [(words, environment())]) as processes:
        processes.wait_for(run, 1)
        process, metrics, lines, read = psutil.Process(processes.started[0].pid), run / "metrics.jsonl", 0, 0
        while lines < steps - 50 and processes.started[0].poll() is None:
            with metrics.open("rb") as file:
                file.seek(read)
                new = file.read()
            lines, read = lines + new.count(b"\n"), read + len(new)
            samples.append((lines, *measure(process, run)))
            time.sleep(0.1)
        while processes.started[0].poll() is None:  # of any length, as nothing of it is missing
            time.sleep(0.5)
        assert processes.finish()[0] == [0]
    warm = [sample for sample in samples if sample[0] > WARM * steps]
    first, last = warm[: len(warm) // 4], warm[-(len(warm) // 4) :]
    bytes_before, bytes_after = (median([sample[1] for sample in part]) for part in (first, last))
    assert bytes_after < GROWTH * bytes_before, (bytes_before, bytes_after)
    assert max(sample[2] for sample in last) <= max(sample[2] for sample in first), "open files"
    assert max(sample[3] for sample in warm) <= 3, "two are kept, one is written"
    record_property("count", steps)
    record_property("note", f"memory x {bytes_after / bytes_before:.4f} after warm-up")
