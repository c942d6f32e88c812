"""python -m eval.picture: one picture of one run or several; see lab.runs.picture."""

import sys

from lab.runs.picture import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
