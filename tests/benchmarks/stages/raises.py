"""A stage whose second case raises."""

from benchmarks.gpu.stage import run


def broken():
    raise ValueError("no such thing")


if __name__ == "__main__":
    run(lambda options: [("before", lambda: {"x": 1}), ("broken", broken), ("after", lambda: {"x": 2})])
