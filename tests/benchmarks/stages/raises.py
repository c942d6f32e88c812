"""A stage whose second case raises."""


def broken():
    raise ValueError("no such thing")


def cases(options):
    return [("before", lambda: {"x": 1}), ("broken", broken), ("after", lambda: {"x": 2})]
