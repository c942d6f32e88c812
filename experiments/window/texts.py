"""Write the texts of L and N, which the lab's generator does not make as they are.

In tokens of their base model: whole.jsonl has those of W's documents that a window of 384 does not cut, natural.jsonl
documents of W's form with sentences of Python's reference (pydoc_data.topics) as filler. docstrings.txt has the
docstrings of the standard library, in which models are tested and on which none is trained. The stage far has a corpus
of its own, far.jsonl: more long documents, which ask for their numbers in random order.

The texts of S2 are written at commit fbd5e937.
"""

import ast
import itertools
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from tokenizers import Tokenizer

from lab.core.files import write_atomic
from lab.data.synthetic import Synthetic

TOKENS = 1_100_000  # of a corpus, a tenth more than are trained on
HAYSTACK_TOKENS = 20_000


def select_documents(
    corpus: Synthetic, tokenizer: Tokenizer, n_tokens: int, least: int = 1, most: int = 2**24
) -> Iterator[str]:
    """Yield the documents of a corpus whose tokens lie between two bounds until they have `n_tokens` together."""
    for index in itertools.count():
        text = corpus.document(index)
        size = len(tokenizer.encode(text).ids) + 1  # the end of the document
        if least <= size <= most:
            yield text
            n_tokens -= size
        if n_tokens <= 0:
            return


def write_branch_texts(folder: Path, tokenizer: Tokenizer, corpus: Synthetic) -> None:
    """Write the texts of L and N in the tokens of a base model; `corpus` has W's documents of the branches' seed."""
    folder.mkdir(parents=True, exist_ok=True)
    natural = use_filler(corpus, [split_tokens(tokenizer, sentence) for sentence in read_reference()])
    texts = {
        "whole": select_documents(corpus, tokenizer, TOKENS, most=384),
        "natural": select_documents(natural, tokenizer, TOKENS),
    }
    for name, documents in texts.items():
        write_documents(folder / f"{name}.jsonl", documents)
    write_atomic(folder / "haystack.txt", corpus.filler(0, HAYSTACK_TOKENS).encode())
    write_atomic(folder / "docstrings.txt", "\n".join(read_docstrings()).encode())  # last: all are there


def write_documents(path: Path, documents: Iterable[str]) -> None:
    """Write a corpus that `name: text` reads."""
    write_atomic(path, "".join(json.dumps({"text": text}) + "\n" for text in documents).encode())


def write_far_text(path: Path, tokenizer: Tokenizer, corpus: Synthetic, n_tokens: int = 4 * TOKENS) -> None:
    """Write documents of which those of 576 to 768 tokens, 7.7% of the tokens otherwise, are 30%."""
    asked = replace(corpus, spread="uniform", order="shuffled")
    more = replace(asked, seed=corpus.seed + 1000)  # none of the documents above
    long_ones = select_documents(more, tokenizer, int(0.242 * n_tokens), 576, 768)
    write_documents(path, itertools.chain(select_documents(asked, tokenizer, int(0.758 * n_tokens)), long_ones))


def use_filler(corpus: Synthetic, pool: Sequence[list[str]]) -> Synthetic:
    """Return a corpus of the same documents whose filler is sentences of a pool, in pieces of one token each."""

    class Filled(Synthetic):
        def sentences(self, rng: np.random.Generator, n_tokens: int) -> list[list[str]]:
            out: list[list[str]] = []
            left = n_tokens
            while left > 1:
                sentence = pool[int(rng.integers(len(pool)))][: left - 1]  # the last one is cut
                out.append([*sentence, "."])
                left -= len(sentence) + 1
            return out

    return Filled(**vars(corpus))


def split_tokens(tokenizer: Tokenizer, sentence: str) -> list[str]:
    """Cut a sentence, which a space precedes, into the texts of its tokens."""
    text = f" {sentence}"
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    return [text[start:end] for start, end in offsets]


def read_reference() -> list[str]:
    """Read the distinct sentences of Python's reference, in ASCII, without their full stops."""
    text = " ".join("\n".join(topics.values()).split())
    sentences = re.findall(r"(?<=[.:] )[A-Z][ -\-/-~]{20,160}(?=\. )", text)
    return list(dict.fromkeys(sentences))


def read_docstrings() -> list[str]:
    """Read the docstrings of the top-level modules of the standard library, in ASCII, each on a line."""
    out = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                if text and text.isascii():
                    out.append(text)
    return out
