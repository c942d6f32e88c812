"""The runner of child processes: order, what is done already, failures and signals."""

import sys

import psutil
import pytest

from lab.jobs import Job, run_jobs
from tests.refusals import refused

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); print('printed'); sys.exit(int(sys.argv[3]))"


def job(place, name, status=0):
    words = [sys.executable, "-S", "-c", WRITE, str(place / "order"), name, str(status)]
    return Job(name, words, output=place / "log")


def test_children_are_killed_where_something_fails_here(tmp_path):
    def fail(one, status):
        raise ValueError(one.name)

    asleep = Job("b", [sys.executable, "-S", "-c", "import time; time.sleep(60)", str(tmp_path)])
    with pytest.raises(ValueError, match="a"):
        run_jobs([job(tmp_path, "a"), asleep], at_once=2, on_end=fail)
    assert [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])] == []
    with refused("nowhere: cannot be started (No such file or directory){}"):
        run_jobs([Job("a", ["nowhere"])])
