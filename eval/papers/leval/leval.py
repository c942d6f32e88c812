"""Rows and scores of L-Eval's closed-ended tasks, for the YAML files in this folder; the harness runs them.

Source: L-Eval (arXiv:2307.11088) and the zero-shot script of arXiv:2402.17463, which give the prompts and the rules.
"""

import re
from typing import Any

from lab.core.types import Row

NONE = "None"  # of the options


def questions(rows: Any) -> Any:
    """Make a row of each question: a row of L-Eval has a document, several instructions and an output for each."""
    from datasets import Dataset  # here, because it is heavy

    out = []
    for row in rows:
        for question, output in zip(row["instructions"], row["outputs"], strict=True):
            out.append({"document": row["input"], "question": question, "output": output})
    return Dataset.from_list(out)


def outside_the_document(rows: Any) -> Any:
    """Make a row of each question, which asks about the world instead of the document."""
    return questions(rows).map(
        lambda row: {
            "question": row["question"].replace(
                "based on the world described in the document.",
                "based on the real-world knowledge and facts up until your last training",
            )
        }
    )


def one_option(row: Row, answers: list[str]) -> dict[str, float]:
    """Score by the first option that is named."""
    named = re.search("[A-D]", answers[0])
    return {"acc": agreement(named[0] if named else NONE, list_right_options(row))}


def agreement(chosen: str, right: str) -> float:
    """Score options as L-Eval's scorer: 1 for all that are right, a quarter for some of them and no other, else 0.

    Example:
        >>> agreement("AC", "AC"), agreement("C", "AC"), agreement("BC", "AC"), agreement("None", "AC")
        (1.0, 0.25, 0.0, 0.0)
    """
    if chosen == right:
        return 1.0
    if {*chosen} <= {*right}:
        # A choice that lacks right options scores a quarter (Evaluation/em.py).
        return 0.25
    return 0.0


def several_options(row: Row, answers: list[str]) -> dict[str, float]:
    """Score by all options that are named, in any order.

    Example:
        >>> several_options({"output": "AC D"}, ["A. is right, and C) too"])
        {'acc': 1.0}
        >>> several_options({"output": "AC D"}, ["C"])
        {'acc': 0.25}
    """
    answer = answers[0]
    chosen = re.match("[A-D]*", answer)[0]  # type: ignore[index]
    # An answer of fewer than two letters may name options further on, as in "A. is right, and C) too".
    if len(chosen) < 2:
        rest = answer[len(chosen) :].partition("Question")[0]
        chosen += "".join(re.findall(r"[A-D](?=[\s.)])", rest))
        chosen = chosen or "".join(re.findall("[A-D]+", rest)[:1])
    return {"acc": agreement("".join(sorted({*chosen})) or NONE, list_right_options(row))}


def list_right_options(row: Row) -> str:
    return re.sub("[^A-D]", "", row["output"].split()[0])


def loyal(row: Row, answers: list[str]) -> dict[str, float]:
    return score_truth(row["output"].partition("[fact:")[0], answers[0])


def factual(row: Row, answers: list[str]) -> dict[str, float]:
    return score_truth(row["output"].partition("[fact:")[2].removesuffix("]"), answers[0])


def score_truth(right: str, answer: str) -> dict[str, float]:
    """Compare the first word of an answer that contains true or false."""
    named = re.search("true|false", answer.lower())
    return {"acc": float(named is not None and named[0] == right.strip().lower())}
