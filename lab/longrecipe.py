"""python -m lab.longrecipe: a recipe of several runs; see lab.recipes.longrecipe."""

import sys

from lab.command import HELP
from lab.recipes.longrecipe import main

if __name__ == "__main__":
    if "--dry_run" in sys.argv and not {*HELP} & {*sys.argv}:
        from lab.estimate.command import main  # torch loads here
    raise SystemExit(main(sys.argv[1:]))
