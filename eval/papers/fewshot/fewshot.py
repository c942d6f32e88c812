"""Rows and scores of the few-shot tasks of arXiv:2402.17463, Table 3; the harness runs them by the YAML files here.

A row is one of the paper's released files: input (the document), query, output, query_examples and output_examples.

Source: the few-shot script of arXiv:2402.17463, which gives the prompt; SCROLLS (arXiv:2201.03533), the scores.
"""

import math
from typing import Any

from torchmetrics.functional.text import squad

from lab.core.types import Row

ROUGES = ("rouge1", "rouge2", "rougeL")


def with_examples(rows: Any) -> Any:
    """Write each question's prompt; rows of one id are one question with several right answers."""
    from datasets import Dataset  # here, because it is heavy

    asked: dict[str, Row] = {}
    for row in rows:
        one = asked.setdefault(str(row["id"]), {"prompt": prompt(row), "outputs": []})
        one["outputs"].append(row["output"])
    return Dataset.from_list(list(asked.values()))


def prompt(row: Row) -> str:
    r"""Write the document, the examples and the question.

    Example:
        >>> prompt({"input": "D", "query": "Q", "query_examples": ["q"], "output_examples": ["a"]})
        'D\n\nQuestion: q \nAnswer:a\n\nQuestion: Q \nAnswer:'
    """
    text = row["input"]
    for query, output in zip(row["query_examples"], row["output_examples"], strict=True):
        text += f"\n\nQuestion: {query} \nAnswer:{output}"
    return f"{text}\n\nQuestion: {row['query']} \nAnswer:"


def extract_answer(text: str) -> str:
    """Return the first part of an output that is no further question of the model's own."""
    for part in text.split("Question:"):
        # Of an output that begins with a question, the first part is empty, or has a line break alone.
        if len(part.replace("\n", "")) > 1:
            return part
    return text


def f1(row: Row, answers: list[str]) -> dict[str, float]:
    """Score by the words shared with the nearest right answer, as SQuAD does."""
    return {"f1": squad_scores(row, answers)["f1"].item() / 100}


def exact_match(row: Row, answers: list[str]) -> dict[str, float]:
    """Score by whether a right answer was given, but for case, punctuation and articles."""
    return {"exact_match": squad_scores(row, answers)["exact_match"].item() / 100}


def squad_scores(row: Row, answers: list[str]) -> Row:
    right: Any = {"answers": {"text": row["outputs"], "answer_start": [0] * len(row["outputs"])}, "id": "0"}
    return squad([{"prediction_text": extract_answer(answers[0]), "id": "0"}], [right])


def rouge(row: Row, answers: list[str]) -> dict[str, float]:
    """Score by the geometric mean of ROUGE-1, -2 and -L against the nearest right answer of each."""
    from rouge_score.rouge_scorer import RougeScorer

    scores = RougeScorer(ROUGES, use_stemmer=True).score_multi(row["outputs"], extract_answer(answers[0]))
    return {"rouge": math.prod(scores[name].fmeasure for name in ROUGES) ** (1 / 3)}
