"""A stage that dies after its first case, as a crashed driver would end it."""

import os
import sys


def die():
    print("the end is near", file=sys.stderr, flush=True)
    os._exit(3)


def cases(options):
    return [("before", lambda: {"x": 1}), ("death", die)]
