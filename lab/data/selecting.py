r"""LongRecipe's samples: sentences with impactful tokens from windows of the target length, and their ids.

The impactful token types are read from eval.impact's result, whose `token_ids` belong to one vocabulary.

Parts of speech of token types come from a spaCy pipeline: each type takes its most frequent label. Texts are joined
from their tokens, so that the characters of every token are known; a token takes the label of most of its characters.
White space is SPACE, words without a label are X; all others are the labels of Universal Dependencies, as in
arXiv:2409.00509, Figure 4.

A token whose text contains one of the marks . ! ? or a line break ends a sentence:

    tokens     It | was | late | . | He | left | .\n\n | And then
    lengths    4                     3                   1

The text after the last mark is a sentence as well. Every token with a mark ends one: the second token of a "?!" is a
sentence of its own, and a "3.14" of three tokens is cut after the point.

Source: arXiv:2409.00509, Algorithm 1, line 6. The released code ends sentences at five token ids of Llama 3's
vocabulary only. A mark inside a longer token, as in `."` or a blank line after a full stop, ends nothing there.

Sentence selection: a sample is a fixed number of tokens of a longer text, in whole sentences that matter.

    text        a long . | is x here . | and more . | x x . | so it y .      x and y are impactful tokens
    remaining              is x here .                x x .   so it y .
    sample                 is x here .                        so it          budget 6, chosen: the 2nd, then the 5th

1. A sentence without an impactful token is removed.
2. The others are sampled, each at most once, until the budget is full; the last one is cut to fit.
3. The sampled sentences keep the order of the text.

If fewer tokens remain than the budget, the sample is all of them. If no token of a text is impactful, all of its
sentences remain, so that no text is dropped; such samples are counted.

Source: arXiv:2409.00509, section 4.1, last paragraph, and Table 2, whose "Random T" samples from all sentences. The
paper does not specify how sentences are chosen among those that remain or what happens to the last one: both are ours.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from tokenizers import Tokenizer

from lab.core.errors import ConfigError, MissingPackage, first_line
from lab.core.schema import PathText, Positive, Section, Seed, Tests
from lab.core.types import IGNORE, IntArray
from lab.data.tokenizer import n_ids, vocabulary_hash
from lab.masks import TokenRun
from lab.skip import BoolArray, LongRecipe, skip_positions

MARKS = ".!?\n"
RESULT = "impact.json"  # written by eval.impact
UNLABELLED, SPACE = "X", "SPACE"
PositiveShare = Annotated[float, Gt(0), Le(1)]


def split_sentences(ids: Sequence[int] | np.ndarray, ends: BoolArray) -> IntArray:
    """Return the lengths in tokens of the sentences of a token sequence; none for an empty one.

    Shapes: (n_tokens,), `ends` from `sentence_ends` (vocab_size,) -> int64 (n_sentences,).
    Example:
        >>> split_sentences([7, 1, 0, 5, 0, 7], np.array([True, False, False, False, False, False, False, False]))
        array([3, 2, 1])
    """
    closing = ends[np.asarray(ids, dtype=np.int64)]
    # The text after the last mark is a sentence too. A slice, as an empty sequence has no last token.
    closing[-1:] = True
    return np.diff(np.flatnonzero(closing), prepend=-1)


def sentence_ends(tokenizer: Tokenizer) -> BoolArray:
    """Return for each token id, bool (vocab_size,), whether its text contains a mark; special tokens have no text."""
    # Decoded one by one: in a longer text a decoder may join or strip the text of a token.
    texts = tokenizer.decode_batch([[token] for token in range(n_ids(tokenizer))])
    return np.array([not set(MARKS).isdisjoint(text) for text in texts])


def sentences_with(impactful: BoolArray, tokens: IntArray, lengths: IntArray) -> BoolArray:
    """Return for each sentence whether one of its tokens is impactful.

    Shapes: impactful (vocab_size,), tokens (n_tokens,), lengths (n_sentences,) -> bool (n_sentences,).
    """
    return np.logical_or.reduceat(impactful[tokens], np.cumsum(lengths) - lengths)


def choose_sentences(lengths: IntArray, remaining: BoolArray, budget: int, generator: np.random.Generator) -> IntArray:
    """Choose from the sentences that remain and return how many tokens of each are kept: all, the first few, or none.

    Shapes: (n_sentences,), (n_sentences,) -> int64 (n_sentences,).
    Example:
        >>> choose_sentences(np.array([4, 3, 2]), np.array([True, False, True]), 5, np.random.default_rng(0))
        array([4, 0, 1])
    """
    order = generator.permutation(np.flatnonzero(remaining))
    sizes = lengths[order]
    # What is left of the budget before each choice: below 0, a sentence keeps no token.
    room = budget - (np.cumsum(sizes) - sizes)
    n_kept = np.zeros(len(lengths), dtype=np.int64)
    n_kept[order] = np.clip(room, 0, sizes)
    return n_kept


@dataclass(frozen=True, eq=False)
class Selection:
    """Selects sentences of a window that have impactful tokens, at most `budget` tokens.

    Shapes: `ends` and `impactful` bool (vocab_size,): whether a token id ends a sentence, and whether it is impactful.
    """

    config: LongRecipe
    budget: int
    ends: BoolArray
    impactful: BoolArray

    def sentences(self, tokens: IntArray) -> tuple[IntArray, BoolArray, bool]:
        """Split a window; return its sentences' lengths, which remain, and whether any has an impactful token."""
        lengths = split_sentences(tokens, self.ends)
        remaining = sentences_with(self.impactful, tokens, lengths)
        matched = bool(remaining.any())
        return lengths, remaining | (not matched), matched  # a window without any is still trained on

    def length(self, tokens: IntArray) -> int:
        """Return the length in tokens of a window's sample, which does not depend on random choices."""
        lengths, remaining, _ = self.sentences(tokens)
        return min(self.budget, int(lengths[remaining].sum()))

    def sample(self, tokens: IntArray, targets: IntArray, generator: np.random.Generator) -> TokenRun:
        """Sample sentences of a window, then ids that break between them only.

        A target is scored if it is the next token of the sample. arXiv:2409.00509 does not specify the end of a
        sentence whose successor is excluded, and the choice is ours.

        Shapes: int64 (target_len,).
        """
        lengths, remaining, matched = self.sentences(tokens)
        n_kept = choose_sentences(lengths, remaining, self.budget, generator)
        # the tokens of a sentence that are kept are its first ones
        number_in_sentence = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        indices = np.flatnonzero(number_in_sentence < np.repeat(n_kept, lengths))
        ids = skip_positions(self.config, len(indices), sentence_lengths=n_kept[n_kept > 0], generator=generator)
        # an excluded sentence is between two sampled tokens whose indices are not neighbours
        follows = np.diff(indices, append=-1) == 1
        return TokenRun(tokens[indices], np.where(follows, targets[indices], IGNORE), ids, matched=matched)


def result_file(path: Path) -> Path:
    return path / RESULT if path.is_dir() else path


def read_token_types(path: Path, tokenizer: Tokenizer) -> BoolArray:
    """Read the impactful token types, true for their token ids.

    Shapes: bool (vocab_size,).
    Raises: ConfigError for a missing or broken file, another vocabulary, or no token types.
    """
    made = "use one of probe-lab impact BASE TUNED -o FOLDER, with models of this tokenizer"
    try:
        result: Any = json.loads(result_file(path).read_text("utf-8"))
        ids, of = result["token_ids"], result["tokenizer"]
        size = n_ids(tokenizer)
        if not ids or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ValueError("its token_ids are none of this vocabulary")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"skip.selection={path}: is no result of impact ({error}); {made}") from error
    if of != vocabulary_hash(tokenizer):
        raise ConfigError(f"skip.selection={path}: was made with another tokenizer than data.tokenizer; {made}")
    types = np.zeros(size, dtype=np.bool_)
    types[ids] = True
    return types


class ImpactConfig(Section):
    """Options of eval.impact (arXiv:2409.00509, section 4.1)."""

    windows: Tests = 50
    """Windows that both models score."""
    length: Annotated[int, Ge(2)] | None = None
    """Tokens of a window, the target length. Default: the training window of TUNED."""
    top: PositiveShare = 0.2
    """Share of the targets at each position that is marked: those whose logit changes most."""
    coverage: PositiveShare = 0.5
    """Share of all marked targets that the selected types cover, the most impactful types first."""
    min_count: Positive = 10
    """Occurrences that a type needs to be selected."""
    tagger: PathText | None = None
    """spaCy pipeline, its name or folder, whose parts of speech are the types. Default: tokens are the types."""
    text: PathText | None = None
    """Source of the windows, a .txt, .json or .jsonl file. Default: held-out documents of the corpus of TUNED, in
    order."""
    seed: Seed = 0
    """Seed of the choice of windows."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device; auto takes a GPU if there is one."""


def open_tagger(name: str) -> Any:
    """Open an installed pipeline by its name, or a folder of one.

    Raises: MissingPackage without spaCy, ConfigError for a missing pipeline.
    """
    try:
        import spacy
    except ImportError as error:
        raise MissingPackage("spacy", "--tagger", "pos") from error
    try:
        # none of these components changes parts of speech
        return spacy.load(name, exclude=("parser", "senter", "ner", "lemmatizer"))
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"--tagger={name}: cannot be opened ({first_line(error)}); install one, for instance en_core_web_sm by "
            "python -m spacy download, or name the folder of one"
        ) from error


def label_types(tagger: Any, rows: Iterable[IntArray], texts: Sequence[str | None]) -> dict[int, str]:
    """Determine the part of speech of every token type in some texts; ties are resolved alphabetically.

    `texts` are those of all tokens, None for special tokens, which take no label.

    Shapes: rows of (n_tokens,).
    Raises: ConfigError for a pipeline that labels nothing.
    """
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    spelled = ["\n" if text is None else text for text in texts]  # a special token separates texts
    pieces = []
    for row in rows:
        for piece in np.split(row, range(2000, len(row), 2000)):
            words = [spelled[token] for token in piece]
            pieces.append(("".join(words), (piece.tolist(), words)))
    for document, (tokens, words) in tagger.pipe(pieces, as_tuples=True):
        for token, label in zip(tokens, align_labels(words, document), strict=True):
            if texts[token] is not None:
                counts[token][label] += 1
    labels = {}
    for token, numbers in counts.items():
        labels[token] = min(numbers, key=lambda label: (-numbers[label], label))
    if not {UNLABELLED, SPACE}.issuperset(chain.from_iterable(counts.values())):
        return labels
    raise ConfigError(
        "--tagger: labels no part of speech; give a pipeline with a tagger or a morphologizer, such as en_core_web_sm"
    )


def align_labels(words: Sequence[str], document: Any) -> Iterator[str]:
    """Yield the label of each token of a tagged text, by its characters: that of most of them, the first in a tie."""
    labels: list[str] = [""] * len(document.text)  # of each character
    for word in document:
        if not word.is_space:
            labels[word.idx : word.idx + len(word)] = [word.pos_ or UNLABELLED] * len(word)
    for begin, end in pairwise(accumulate(map(len, words), initial=0)):
        counts = Counter(labels[begin:end])
        del counts[""]
        yield counts.most_common(1)[0][0] if counts else SPACE
