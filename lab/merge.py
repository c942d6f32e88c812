"""python -m lab.merge: merge models; see lab.recipes.merge."""

import sys

from lab.recipes.merge import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
