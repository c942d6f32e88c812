"""Statements hidden in a haystack: retrieval of values by key (niah), and multi-hop tracing of variables (vt).

Retrieval. A needle states the value of a key. `keys` keys have `values` values each. `queries` of the keys are asked
for, and all their values are the answer. The haystack is the noise line again and again, essays, or more needles with
other keys. A haystack of noise or needles has whole lines, and the needle is before any of them with equal probability.
Essays are cut after a word. Their needles are between sentences, at depths drawn without repetition from DEPTHS evenly
spaced ones.

Source: niah.py, commit c3f5e3b. Ours are the search for the longest haystack and the order of the needles, new in every
test. Sentences end at a full stop, question or exclamation mark before a blank, where RULER uses nltk.

Tracing. Which variables hold a value that is passed from one to the next?

    VAR A = 12345 ... VAR B = VAR A ... VAR C = VAR B ...

A chain gives a number of 5 digits to its first variable. HOPS further statements pass it on, in this order. They are
before random lines of the noise, or before its sentences where lines are few. The answer is all variables of the chain.
Where there is room, a worked example with short names comes first. It takes at most EXAMPLE_TOKENS and half of the
prompt.

Source: variable_tracking.py. Text and layout are those of commit f682453 (2024-07-12), as in the papers' measurements.
Since 2025-05 (4a216f4) RULER spells "assigned" and puts statements in lines of their own. Ours are a new example in
every test and its limit of half of the prompt.

Aggregation: the words that occur most often, in a shuffled list (cwe) and in a coded text (fwe).

Common words. Ten common words occur more often than all others. The list grows by other words. A worked example, a
shorter list with its answer, comes first where there is room for both. Words are English as long as there are enough,
then made up. With `--words=wonderwords` they are drawn from RULER's 8,166, of which some are part of others. Of the
lab's own 1,332 none is part of another. Ours are the made-up words, where RULER stops (until 2025-05) or takes a second
list (since), and a new order in every test. Source: common_words_extraction.py, commit f682453.

From LONG tokens on: 30 and 3 times, an example of 40 words, 10 and 3 times. Shorter, as in RULER: 6 and 1 times, an
example of 20 words, 3 and 1 times.

Frequent words. A text whose word frequencies follow a zeta law; the three most frequent coded words are asked for:

    count(k) = floor(N k^-ALPHA / zeta(ALPHA))        k = 1, 2, ... rank of a word, N length of the text in words

Rank 1 is noise, written `...`; the answer is ranks 2, 3 and 4. Coded words are CODED letters drawn at random, one of
them for every TOKENS_PER_WORD tokens of the length. Unlike in RULER, N is never one at which ranks 4 and 5 occur
equally often (some below 73 words). More dots fill what room is left. Source: freq_words_extraction.py.

Sources are in scripts/data/synthetic of NVIDIA/RULER, parameters in its synthetic.yaml; the paper is Hsieh et al. 2024,
section 3 and appendix B. As in lm-eval, no prompt ends with a space, which most tokenizers join to the next word.
"""

import itertools
import string
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import zeta

from eval.engine import random_words
from eval.engine.cases import NOISE, Draft, fit_units
from eval.engine.random_words import Distinct, english, sample_letters, sample_made_up
from eval.ruler.sources import SENTENCE_END, Turn, insert, running_text, shuffled

# The wording is verbatim from NVIDIA/RULER, scripts/data/synthetic/constants.py and niah.py (Apache 2.0). The marks
# \x02 and \x03 are where a chat's question begins and where its answer does (eval/engine/cases.py).
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NEEDLE_ONE = (
    "\x02A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided "
    "text?\x03 The special magic {kind} for {query} mentioned in the provided text is"
)
NEEDLE_SEVERAL = (
    "\x02Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you "
    "about the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the "
    "provided text?\x03 The special magic {kind} for {query} mentioned in the provided text are"
)
TRACING = (
    "\x02Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: "
    "Find all variables that are assigned the value {query} in the text above.\x03 Answer: According to the chain(s) "
    "of variable assignment in the text above, {n} variables are assgined the value {query}, they are:"
)
DEPTHS = 40
KINDS = {"words": random_words.sample_pair, "numbers": random_words.sample_number, "uuids": random_words.sample_uuid}
HOPS = 4
EXAMPLE_TOKENS = 500  # RULER's length for the example, with 30 of them for its answer
LEAST = HOPS + 2  # sentences of noise: one more than there are statements
SENTENCES = SENTENCE_END.split(NOISE)
Haystack = Literal["noise", "essays", "needles"]
Kind = Literal["words", "numbers", "uuids"]
Chain = tuple[list[str], int, list[float]]  # names of variables, their value, and the rising depths of the statements


def needles(
    turn: Turn,
    *,
    haystack: Haystack,
    key_kind: Kind = "words",
    value_kind: Kind = "numbers",
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
) -> Draft:
    """Sample keys, values, order, depths and questions."""
    rng = turn.rng
    key_words = Distinct(partial(KINDS[key_kind], rng))
    drawn = Distinct(partial(KINDS[value_kind], rng))
    pairs = [(key, drawn.next()) for key in np.repeat(key_words.first(keys), values).tolist()]
    planted = []
    for k in rng.permutation(len(pairs)):
        key, value = pairs[k]
        planted.append(NEEDLE.format(kind=value_kind, key=key, value=value))
    depths = sorted((rng.choice(DEPTHS, len(pairs), replace=False) / (DEPTHS - 1)).tolist())
    if haystack != "essays":
        depths = sorted(rng.random(len(pairs)).tolist())
    asked = [key_words.words[k] for k in rng.choice(keys, queries, replace=False)]
    text, most = running_text(turn.sources["essays"], rng)
    others = Distinct(lambda: NEEDLE.format(kind=value_kind, key=key_words.next(), value=drawn.next()))

    def prompt(units: int) -> str:
        between = "\n"
        if haystack == "noise":
            pieces = [NOISE] * units
        elif haystack == "needles":
            pieces = others.first(units)
        else:
            pieces = SENTENCE_END.split(text(units))
            between = " "
        context = between.join(insert(pieces, planted, [int(depth * len(pieces)) for depth in depths]))
        return ask(context, asked, value_kind, several=queries * values > 1)

    answers: list[str] = []
    for query in asked:
        answers += [value for key, value in pairs if key == query]
    # Lines of noise repeat without end, and needles are always new.
    if haystack != "essays":
        most = None
    return Draft(
        compose=prompt,
        least=1,
        answers=tuple(answers),
        most=most,
        exhausted=f"--haystack: {most} words are too short a haystack for length={{length}}; give a longer text",
    )


def ask(context: str, asked: Sequence[str], kind: Kind, *, several: bool) -> str:
    """Join task, haystack, question and the answer's start; a single value is asked for in the singular."""
    query = asked[-1]
    if len(asked) > 1:
        query = f"{', '.join(asked[:-1])}, and {query}"
    if several:
        return NEEDLE_SEVERAL.format(kind=kind, context=context, query=query)
    return NEEDLE_ONE.format(kind=kind[:-1], context=context, query=query)


def sample_chain(rng: random_words.Generator, letters: int, taken: Sequence[str] = ()) -> Chain:
    """Sample distinct names, also from those taken, a value, and depths anywhere."""
    sampler = Distinct(partial(sample_letters, rng, string.ascii_uppercase, letters), list(taken))
    names = sampler.first(len(taken) + HOPS + 1)[len(taken) :]
    return names, int(rng.integers(10_000, 100_000)), sorted(rng.random(HOPS + 1).tolist())


def trace(chain: Chain, sentences: int) -> str:
    """Write the statements between the lines of a number of sentences of noise, or between the sentences."""
    names, value, depths = chain
    lines = sentences // len(SENTENCES)
    pieces = [f"{NOISE}\n"] * lines
    if lines <= len(names):
        pieces = (SENTENCES * (lines + 1))[:sentences]
    statements = [f"VAR {names[0]} = {value}"]
    for old, new in itertools.pairwise(names):
        # A hop ends with a blank, as in RULER.
        statements.append(f"VAR {new} = VAR {old} ")
    # Depths rise, and statement k moves k pieces on: so at least one piece is between two statements.
    free = len(pieces) - len(names) + 1
    places = [int(depth * free) + number for number, depth in enumerate(depths)]
    context = " ".join(insert(pieces, statements, places))
    return TRACING.format(context=context, query=value, n=len(names))


def tracing(turn: Turn) -> Draft:
    """Sample names, a value and places; write an example with its answer where it takes at most half of the room."""
    example = sample_chain(turn.rng, 3)
    chain = sample_chain(turn.rng, 5, taken=example[0])

    def solved(sentences: int) -> str:
        return f"{trace(example, sentences)} {' '.join(example[0])}\n\n"

    count = turn.writer.count
    worked = ""
    most = min(EXAMPLE_TOKENS, turn.room // 2)
    if count(solved(LEAST)) <= most:
        worked = solved(fit_units(lambda sentences: count(solved(sentences)), most, LEAST))
        if count(worked + trace(chain, LEAST)) > turn.room:
            worked = ""
    return Draft(compose=lambda sentences: worked + trace(chain, sentences), least=LEAST, answers=tuple(chain[0]))


# The wording is verbatim too.
COMMON_WORDS = (
    "\x02Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?\x03 Answer: The top "
    "10 words that appear most often in the list are:"
)
FREQUENT_WORDS = (
    "\x02Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What "
    "are the three most frequently appeared words in the above coded text?\x03 Answer: According to the coded text "
    "above, the three most frequently appeared words are:"
)
COMMON = 10
LONG = 4096
ALL_EXAMPLE_WORDS = 40  # set aside at every length, so that the words of a test do not depend on it
ALPHA = 2.0
CODED = 6
TOKENS_PER_WORD = 50
DOTS = "..."
ASKED = 3


def common_words(turn: Turn) -> Draft:
    """Sample the words and their order."""
    # Repeats of common and of other words, in the test and in the example, and the example's words.
    repeats, example_repeats, n_example = (6, 1), (3, 1), 20
    if turn.length >= LONG:
        repeats, example_repeats, n_example = (30, 3), (10, 3), 40
    pool = turn.sources["words"] or [*itertools.chain(*english().values())]
    words = Distinct(partial(sample_made_up, turn.rng), [pool[k] for k in turn.rng.permutation(len(pool))])
    orders = [int(seed) for seed in turn.rng.integers(2**62, size=2)]
    example_words = words.words[:n_example]
    example = list_words(example_words, COMMON, *example_repeats, orders[0])
    example += f" {number_words(example_words[:COMMON])}\n"

    def main(others: int) -> str:
        listed = words.first(ALL_EXAMPLE_WORDS + COMMON + others)[ALL_EXAMPLE_WORDS:]
        return list_words(listed, COMMON, *repeats, orders[1])

    if turn.writer.count(example + main(COMMON)) > turn.room:
        example = ""
    answers = tuple(words.words[ALL_EXAMPLE_WORDS : ALL_EXAMPLE_WORDS + COMMON])
    return Draft(compose=lambda others: example + main(others), least=COMMON, answers=answers)


def list_words(words: Sequence[str], common: int, common_repeats: int, other_repeats: int, order: int) -> str:
    r"""Write the task with a shuffled list; longer lists with the same seed keep the order of what they share.

    Example:
        >>> list_words(["ox", "hen"], 1, 3, 1, 5).split("\n")[1]
        '1. hen 2. ox 3. ox 4. ox'
    """
    entries = np.repeat(words, [common_repeats] * common + [other_repeats] * (len(words) - common))
    return COMMON_WORDS.format(context=number_words(shuffled(entries, order)))


def number_words(words: Sequence[str]) -> str:
    return " ".join([f"{number}. {word}" for number, word in enumerate(words, start=1)])


def frequent_words(turn: Turn) -> Draft:
    """Sample the coded words and their order."""
    ranks = max(ASKED + 2, turn.length // TOKENS_PER_WORD)
    coded = Distinct(partial(sample_letters, turn.rng, string.ascii_lowercase, CODED))
    order = int(turn.rng.integers(2**62))
    # The numbers of words at which the last asked rank occurs more often than the next. Both counts are rounded down:
    # they always differ where their exact values are 1 apart.
    gap = ((ASKED + 1) ** -ALPHA - (ASKED + 2) ** -ALPHA) / zeta(ALPHA)
    clear = []
    for n in range(int(np.ceil(1 / gap)) + 1):
        times = counts(n, ASKED + 2)
        if times[ASKED] > times[-1]:
            clear.append(n)

    def prompt(units: int, dots: int = 0) -> str:
        words = [DOTS, *coded.first(ranks - 1)]
        # Past the end of `clear` every number of words will do, so that they go on one by one.
        n_words = clear[units] if units < len(clear) else clear[-1] + 1 + units - len(clear)
        entries = shuffled(np.repeat(words, counts(n_words, ranks)), order)
        return FREQUENT_WORDS.format(context=" ".join(entries + [DOTS] * dots))

    answers = tuple(coded.first(ASKED))
    return Draft(compose=prompt, least=0, answers=answers, refine=lambda units: partial(prompt, units))


def counts(n_words: int, ranks: int) -> list[int]:
    """Count how often the words of the first ranks occur in a text of `n_words`.

    Example:
        >>> counts(100, 6)
        [60, 15, 6, 3, 2, 1]
    """
    shares = np.arange(1, ranks + 1) ** -ALPHA / zeta(ALPHA)
    return np.floor(n_words * shares).astype(int).tolist()
