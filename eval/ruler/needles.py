"""Statements hidden in a haystack: retrieval of values by key (niah), and multi-hop tracing of variables (vt).

Retrieval. A needle states the value of a key. `keys` keys have `values` values each. `queries` of the keys are asked
for, and all their values are the answer. The haystack is the noise line again and again, essays, or more needles with
other keys.

A haystack of noise or needles has whole lines, and the needle is before any of them with equal probability. Essays are
cut after a word. Their needles are between sentences, at depths drawn without repetition from DEPTHS evenly spaced
ones.

Source: Hsieh et al. 2024, section 3 and appendix B; NVIDIA/RULER, scripts/data/synthetic/niah.py and synthetic.yaml,
commit c3f5e3b. Ours are the search for the longest haystack and the order of the needles, new in every test. Sentences
end at a full stop, question or exclamation mark before a blank, where RULER uses nltk.

As in lm-eval, no prompt of a task ends with a space, as most tokenizers join a space to the word that follows.

Tracing. Which variables hold a value that is passed from one to the next?

    VAR A = 12345 ... VAR B = VAR A ... VAR C = VAR B ...

A chain gives a number of 5 digits to its first variable. HOPS further statements pass it on, in this order. They are
before random lines of the noise, or before its sentences where lines are few. The answer is all variables of the chain.
Where there is room, a worked example with short names comes first. It takes at most EXAMPLE_TOKENS and half of the
prompt.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py. Text and layout are
those of commit f682453 (2024-07-12), as in the papers' measurements. Since 2025-05 (4a216f4) RULER spells "assigned"
and puts statements in lines of their own. Ours are a new example in every test and its limit of half of the prompt.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from functools import partial
from typing import Literal

from eval.engine import cases
from eval.engine.cases import NOISE, Distinct, Draft, Turn, Writer
from eval.ruler.sources import SENTENCE_END, Sources, insert, running_text

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
KINDS = {"words": cases.draw_pair, "numbers": cases.draw_number, "uuids": cases.draw_uuid}
HOPS = 4
LETTERS = 5  # of a variable's name
EXAMPLE_LETTERS = 3
EXAMPLE_TOKENS = 500  # RULER's length for the example, with 30 of them for its answer
VALUES = 10_000, 100_000
LEAST = HOPS + 2  # sentences of noise: one more than there are statements
SENTENCES = SENTENCE_END.split(NOISE)


Haystack = Literal["noise", "essays", "needles"]
Kind = Literal["words", "numbers", "uuids"]
Chain = tuple[list[str], int, list[float]]  # names of variables, their value, and the rising depths of the statements


def needles(
    writer: Writer,
    sources: Sources,
    turn: Turn,
    *,
    haystack: Haystack,
    key_kind: Kind = "words",
    value_kind: Kind = "numbers",
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
) -> Draft:
    """Draw keys, values, order, depths and questions."""
    rng = turn.rng
    known = Distinct(partial(KINDS[key_kind], rng))
    drawn = Distinct(partial(KINDS[value_kind], rng))
    pairs = [(key, drawn.next()) for key in known.first(keys) for _ in range(values)]
    planted = [NEEDLE.format(kind=value_kind, key=pairs[k][0], value=pairs[k][1]) for k in rng.permutation(len(pairs))]
    depths = sorted((rng.choice(DEPTHS, len(pairs), replace=False) / (DEPTHS - 1)).tolist())
    if haystack != "essays":
        depths = sorted(rng.random(len(pairs)).tolist())
    asked = [known.words[k] for k in rng.choice(keys, queries, replace=False)]
    text, most = running_text(sources["essays"], rng)
    others = Distinct(lambda: NEEDLE.format(kind=value_kind, key=known.next(), value=drawn.next()))

    def pieces(units: int) -> list[str]:
        if haystack == "essays":
            return SENTENCE_END.split(text(units))
        return [NOISE] * units if haystack == "noise" else others.first(units)

    def prompt(units: int) -> str:
        context = hide(pieces(units), planted, depths, " " if haystack == "essays" else "\n")
        return ask(context, asked, value_kind, several=queries * values > 1)

    return Draft(
        compose=prompt,
        least=1,
        answers=tuple(value for query in asked for key, value in pairs if key == query),
        most=most if haystack == "essays" else None,
        exhausted=f"--haystack: {most} words are too short a haystack for length={{length}}; give a longer text",
    )


def hide(pieces: Sequence[str], planted: Sequence[str], depths: Sequence[float], between: str) -> str:
    """Put needles between the lines or sentences of a haystack; `between` joins all."""
    return between.join(insert(pieces, planted, [int(depth * len(pieces)) for depth in depths]))


def ask(context: str, asked: Sequence[str], kind: Kind, *, several: bool) -> str:
    """Join task, haystack, question and the answer's start; a single value is asked for in the singular."""
    query = ", ".join(asked[:-1]) + ", and " + asked[-1] if len(asked) > 1 else asked[0]
    form, noun = (NEEDLE_SEVERAL, kind) if several else (NEEDLE_ONE, kind[:-1])
    return form.format(kind=noun, context=context, query=query)


def draw_chain(rng: cases.Generator, letters: int, taken: Sequence[str] = ()) -> Chain:
    """Draw distinct names, also from those taken, a value, and depths anywhere."""
    names = Distinct(partial(cases.draw_letters, rng, string.ascii_uppercase, letters), list(taken))
    return [names.next() for _ in range(HOPS + 1)], int(rng.integers(*VALUES)), sorted(rng.random(HOPS + 1).tolist())


def trace(chain: Chain, sentences: int) -> str:
    """Write the statements between the whole lines of so many sentences of noise, or between the sentences."""
    names, value, depths = chain
    lines = sentences // len(SENTENCES)
    pieces = [f"{NOISE}\n"] * lines
    if lines <= len(names):
        pieces = (SENTENCES * (lines + 1))[:sentences]
    # a hop ends with RULER's blank
    hops = [f"VAR {new} = VAR {old} " for old, new in itertools.pairwise(names)]
    free = len(pieces) - len(names) + 1
    places = [int(depth * free) + number for number, depth in enumerate(depths)]  # never side by side
    context = " ".join(insert(pieces, [f"VAR {names[0]} = {value}", *hops], places))
    return TRACING.format(context=context, query=value, n=len(names))


def tracing(writer: Writer, _: Sources, turn: Turn) -> Draft:
    """Draw names, a value and places; write an example with its answer where it takes at most half of the room."""
    example = draw_chain(turn.rng, EXAMPLE_LETTERS)
    chain = draw_chain(turn.rng, LETTERS, taken=example[0])

    def solved(sentences: int) -> str:
        return f"{trace(example, sentences)} {' '.join(example[0])}\n\n"

    shown = ""
    own = min(EXAMPLE_TOKENS, turn.room // 2)
    if writer.count(solved(LEAST)) <= own:
        shown = solved(cases.fit(lambda sentences: writer.count(solved(sentences)), own, LEAST))
        shown = shown if writer.count(shown + trace(chain, LEAST)) <= turn.room else ""
    return Draft(compose=lambda sentences: shown + trace(chain, sentences), least=LEAST, answers=tuple(chain[0]))
