"""python -m lab.export: export a run as a Hugging Face folder; see lab.recipes.export."""

from lab.command import start
from lab.recipes.export import main

if __name__ == "__main__":
    start(main)
