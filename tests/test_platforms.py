"""Linux and macOS work, without what only Linux has; any other system is refused in one line."""

import pytest

from tests.fits import UNPROBED, command, records
from tests.forked import ROOT
from tests.launching import patched
from tests.test_first_mistakes import ran

WINDOWS = """
import sys, runpy
sys.platform, sys.argv, sys.orig_argv = "win32", ["-m"], ["python", "-m", {0!r}]
runpy.run_module({0!r}, run_name="__main__", alter_sys=True)
"""
MACOS = """
import io, os, sys, sysconfig, urllib.request
sysconfig.get_config_vars()  # this and urllib read parts of the interpreter that Linux's lacks
sys.platform = "darwin"
for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate", "O_DIRECT", "memfd_create", "preadv"):
    delattr(os, name)
def without_proc(own):
    def call(path, *given, **named):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return own(path, *given, **named)
    return call
io.open, os.stat, os.open = map(without_proc, (io.open, os.stat, os.open))
"""


def test_windows_is_refused_before_anything_else():
    for module in ("lab.fit", "lab.sweep", "lab.cli", "eval.distance"):
        done = ran("-c", WINDOWS.format(module))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "Windows: is not supported; use WSL, Linux or macOS\n"


@pytest.mark.slow
def test_a_run_needs_nothing_that_only_linux_has(tmp_path):
    short = ("--optim.warmup_steps=1", "--train.tokens=2048", "--track.every_steps=1", "--train.accelerator=auto")
    done = ran(*patched(command(tmp_path, "mac", *UNPROBED, *short), MACOS)[1:], cwd=ROOT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-3000:]
    assert [record["step"] for record in records(tmp_path / "runs" / "mac")] == [1, 2]
