import sys

import psutil
import pytest

from lab.sweep.jobs import Job, run_jobs
from tests.refusals import refused

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); print('printed'); sys.exit(int(sys.argv[3]))"


def job(place, name, status=0):
    words = [sys.executable, "-S", "-c", WRITE, str(place / "order"), name, str(status)]
    return Job(name, words, output=place / "log")


def test_jobs_run_in_order_those_done_are_skipped_and_a_failure_starts_no_other(tmp_path):
    ended = []
    jobs = [job(tmp_path, "a"), job(tmp_path, "b"), job(tmp_path, "c", status=3), job(tmp_path, "d")]
    record = lambda one, status: ended.append((one.name, status))  # noqa: E731
    assert run_jobs(jobs, is_done=lambda one: one.name == "a", on_end=record) == 3
    assert (tmp_path / "order").read_text() == "bc"
    assert ended == [("b", 0), ("c", 3)]
    assert (tmp_path / "log").read_text().split() == ["printed"] * 2
    assert run_jobs([job(tmp_path, name) for name in "xyz"], at_once=3) == 0


def test_children_are_killed_where_something_fails_here(tmp_path):
    def fail(one, status):
        raise ValueError(one.name)

    asleep = Job("b", [sys.executable, "-S", "-c", "import time; time.sleep(60)", str(tmp_path)])
    with pytest.raises(ValueError, match="a"):
        run_jobs([job(tmp_path, "a"), asleep], at_once=2, on_end=fail)
    assert [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])] == []
    with refused("nowhere: cannot be started "):
        run_jobs([Job("a", ["nowhere"])])
