"""python -m lab.longrecipe: a recipe of several runs; see lab.recipes.longrecipe."""

import sys

from lab.recipes.longrecipe import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
