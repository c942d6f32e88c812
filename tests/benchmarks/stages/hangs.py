"""A stage that starts a process, writes its id down and never ends."""

import subprocess
import sys
import time
from functools import partial


def hang(options):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (options.out / "child").write_text(str(child.pid))
    time.sleep(600)


def cases(options):
    return [("before", lambda: {"x": 1}), ("hang", partial(hang, options))]
