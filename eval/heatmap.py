"""This measure is part of eval.probe; this command names the line to use."""

from eval.engine.command import moved

if __name__ == "__main__":
    moved("eval.heatmap: is part of eval.probe; use python -m eval.probe MODEL --by=depth")
