"""A long run of tiny steps and many probes needs no more memory, open files or checkpoints at its end than before."""

import time
from statistics import median

import psutil

from tests.fits import command
from tests.launching import environment, running
from tests.torture.test_random_stops import steps_of

STEPS, FULL = 1_000, 20_000
EVERY = f"every_tokens={128 * 500}"
TINY = (
    *("--model.d_model=8", "--model.n_layers=1", "--model.n_heads=1", "--model.n_kv_heads=1", "--model.d_ff=8"),
    *("--train.batch_tokens=128", "--train.micro_batch_tokens=128", f"--train.checkpoint_{EVERY}", f"--probe.{EVERY}"),
    *("--probe.tests=1", "--probe.distance_tests=1", "--probe.loss_tokens=256"),
)
WARM = 0.25, 600  # share of the run, and steps, after which nothing may grow: a probe has been run
GROWTH = 1.01


def test_a_long_run_grows_in_nothing(tmp_path, torture, record_property):
    steps, run, samples = torture(STEPS, FULL), tmp_path / "runs" / "long", []
    words = command(tmp_path, "long", *TINY, f"--train.tokens={128 * steps}")
    with running(tmp_path, [(words, environment())]) as processes:
        processes.wait_for(run, max(WARM[0] * steps, WARM[1]))
        process = psutil.Process(processes.started[0].pid)
        while (taken := steps_of(run)) < steps - 50 and processes.started[0].poll() is None:
            kept = len(list((run / "checkpoints").glob("tokens-*")))
            samples.append((taken, process.memory_info().rss, process.num_fds(), kept))
            time.sleep(0.1)
        assert processes.finish()[0] == [0]
    quarter = len(samples) // 4
    before, after = (list(zip(*part)) for part in (samples[:quarter], samples[-quarter:]))
    growth = median(after[1]) / median(before[1])
    assert growth < GROWTH
    assert max(after[2]) <= max(before[2]) + 1, "open files, of which a record may be one at any moment"
    assert max(sample[3] for sample in samples) <= 3, "two are kept, one is written"
    record_property("count", steps)
    record_property("note", f"memory x {growth:.4f} after warm-up")
