"""Texts of the demo's corpus that hide four numbers, and how answers are scored; the tasks mini_* name these."""

import numpy as np
from datasets import Dataset

from lab.data.synthetic import ANSWER_PREFIX, NEEDLE, QUESTION, Synthetic, answer, sample_numbers

CORPUS = Synthetic(words=32, repeat_prob=0.8, quote_prob=0.3, number_prob=0.2)
TEXTS = 24
SHORTEST, STEP = 40, 10  # words, stops and digits of filler; texts have 100 to 335 tokens
UNSEEN = 2**41  # beyond the corpus's documents and the filler of its probes


def documents(**_):
    return {"test": Dataset.from_list([document(index) for index in range(TEXTS)])}


def document(index):
    rng = np.random.default_rng(index)
    sentences = CORPUS.filler(UNSEEN + index, SHORTEST + STEP * index).split(". ")
    numbers = sample_numbers(rng, 7, 3)
    asked, others = numbers[:4], numbers[4:]
    for place, number in reversed([*zip(range(0, 4 * len(sentences), len(sentences)), asked, strict=True)]):
        sentences.insert(place // 4, NEEDLE.format(number=number).strip().removesuffix("."))  # one in each quarter
    text = ". ".join(sentences) + QUESTION + ANSWER_PREFIX
    return {"text": text, "answers": asked, "choices": [answer([first, *asked[1:]]) for first in [asked[0], *others]]}


def share_found(doc, results):
    said = results[0].replace(",", " ").split()
    return {"score": sum(number in said for number in doc["answers"]) / len(doc["answers"])}


def first_found(doc, results):
    return {"score": float(doc["answers"][0] in results[0].replace(",", " ").split())}
