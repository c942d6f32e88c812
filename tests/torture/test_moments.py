"""A signal at any moment from start-up on: the run saves and returns 75, or has written nothing; then it goes on."""

import random
import signal
import time

import pytest

from tests.fits import assert_same_run, command, fit
from tests.forked import LIMIT_S
from tests.launching import environment, interpreter, running

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SENT, FULL = 2, 50
OPTIONS = ("--train.checkpoint_every_tokens=4096",)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("moments"), "whole", *OPTIONS)


def sent(words, place, number, moment):
    """Send a signal to a run and its processes at a moment, and return the exit status and the output."""
    with running(place, [(words, environment())], interpreter) as processes:
        time.sleep(moment)
        processes.send(number, "all")
        (status,), (output,) = processes.finish()
        assert processes.left() == []
    return status, output


def test_a_signal_at_any_moment_is_saved_or_comes_before_anything(whole, torture, record_property):
    place, chosen, endings = whole.parents[1], random.Random(8), []
    begin = time.monotonic()
    with running(place, [(command(place, "timed", *OPTIONS), environment())], interpreter) as processes:
        processes.started[0].wait(LIMIT_S)
    lasts = time.monotonic() - begin
    for n in range(times := torture(SENT, FULL)):
        number, name = SIGNALS[n % len(SIGNALS)], f"run{n}"
        moment = chosen.uniform(0, 1.2) if n % 5 == 1 else chosen.uniform(0, lasts)
        status, output = sent(command(place, name, *OPTIONS), place, number, moment)
        run = place / "runs" / name
        case = f"{number.name} after {moment:.2f} s: {status}: {output[-2000:]}"
        before_any = status == -number and not (run / "metrics.jsonl").exists()
        assert status in (0, 75) or before_any, case
        assert "Traceback" not in output, case
        endings.append("saved" if "all saved" in output else "finished" if status == 0 else "before training")
        fit(place, name, *OPTIONS, "--resume")
        assert_same_run(run, whole)
    record_property("count", times)
    record_property("note", ", ".join(f"{endings.count(kind)} {kind}" for kind in sorted(set(endings))))
