"""A stage that dies after its first case, as a crashed driver would end it."""

import os
import sys

from benchmarks.gpu.stage import run


def die():
    print("the end is near", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    run(lambda options: [("before", lambda: {"x": 1}), ("death", die)])
