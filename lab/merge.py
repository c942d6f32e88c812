"""python -m lab.merge: merge models; see lab.recipes.merge."""

from lab.command import start
from lab.recipes.merge import main

if __name__ == "__main__":
    start(main)
