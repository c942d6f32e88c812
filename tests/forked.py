"""Commands as processes of their own that start at once: copies of a process that has torch and Lightning loaded."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as lab.fit does before torch is loaded; OpenMP reads it once
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as ranks do; torch reads it when it is loaded
LIMIT_S = 300  # for whatever is waited for; the machines of tests are slow
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lab.train.run", "lab.loading", "altair", "eval.probe"])


def restore_hangup():
    """Let SIGHUP end this process, if nohup, under which the tests may run, has ignored it; return what was set."""
    return signal.signal(signal.SIGHUP, signal.SIG_DFL)


def become(words, cwd, variables, output, errors):
    """Run what the interpreter would run for `-m MODULE ...` or `-c CODE ...`, in a session of its own."""
    multiprocessing.set_start_method(None, force=True)  # what an interpreter starts with
    os.setsid()
    restore_hangup()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    for number, name, path in ((1, "stdout", output), (2, "stderr", errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))
    kind, what, *arguments = words
    sys.argv = [what if kind == "-m" else kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


class Forked:
    """What tests use of subprocess.Popen; `words` begin with the interpreter and -m or -c."""

    def __init__(self, words, cwd=ROOT, env=None, output=None, merged=False):
        self.folder = tempfile.TemporaryDirectory()
        self.output = Path(output or Path(self.folder.name) / "output")
        self.errors = self.output if merged else Path(self.folder.name) / "errors"
        variables = dict(os.environ if env is None else env)
        arguments = ([str(word) for word in words[1:]], str(cwd), variables, str(self.output), str(self.errors))
        self.process = CONTEXT.Process(target=become, args=arguments)
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=LIMIT_S):
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.output), timeout)
        return self.returncode

    def communicate(self, timeout=LIMIT_S):
        self.wait(timeout)
        return tuple(path.read_text() if path.exists() else "" for path in (self.output, self.errors))

    def kill(self):
        """Kill the process and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def python(*words, cwd=ROOT, env=None, timeout=LIMIT_S):
    """Do what the interpreter would for `-m MODULE ...` or `-c CODE ...`; return its exit status and output."""
    process = Forked([sys.executable, *words], cwd, env)
    try:
        return subprocess.CompletedProcess(words, process.wait(timeout), *process.communicate())
    finally:
        process.kill()
