"""What stands in the prompts of the 13 tasks, read off their text."""

import hashlib
import itertools
import math
import re
import sys
from collections import Counter

import pytest

from eval.engine.words import english, holds_english
from eval.ruler import wording
from eval.ruler.aggregation import FrequentWords
from eval.ruler.sources import STANDIN, Sources, digest
from eval.ruler.tasks import ALL, CATEGORIES, TASKS, least_length, make_case
from eval.ruler.vt import Chains
from lab.errors import MissingPackage
from tests.eval.ruler.oracle import coded, documents, listed, needles, solve

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KINDS = {"words": r"[a-z]+-[a-z]+", "numbers": r"[1-9][0-9]{6}", "uuids": UUID}
NIAH = {  # haystack, kind of keys, kind of values, needles, distinct keys, queries, values asked for
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1, 1),
    "niah_single_2": ("essays", "words", "numbers", 1, 1, 1, 1),
    "niah_single_3": ("essays", "words", "uuids", 1, 1, 1, 1),
    "niah_multikey_1": ("essays", "words", "numbers", 4, 4, 1, 1),
    "niah_multikey_2": ("needles", "words", "numbers", None, None, 1, 1),
    "niah_multikey_3": ("needles", "uuids", "uuids", None, None, 1, 1),
    "niah_multivalue": ("essays", "words", "numbers", 4, 1, 1, 4),
    "niah_multiquery": ("essays", "words", "numbers", 4, 4, 4, 4),
}


def case_of(writer, sources, name, length, index=0, seed=3, **more):
    return make_case(writer, sources, TASKS[name], length, seed, index, **more)


def test_there_are_13_tasks_in_four_categories_with_the_budgets_of_ruler():
    assert {task.name: task.budget for task in ALL} == {
        **dict.fromkeys(NIAH, 128),
        "vt": 30,
        "cwe": 120,
        "fwe": 50,
        "qa_1": 32,
        "qa_2": 32,
    }
    assert Counter(task.category for task in ALL) == dict(zip(CATEGORIES, (8, 1, 2, 2), strict=True))
    assert {task.name: task.score.__name__ for task in ALL if task.score.__name__ != "all_parts"} == {
        "qa_1": "any_part",
        "qa_2": "any_part",
    }


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_the_answer_can_be_read_off_the_prompt(writer, made_up, task):
    for index, length in itertools.product(range(2), (1700, 2500)):
        case = make_case(writer, made_up, task, length, 11, index)
        assert sorted(solve(case.prompt)) == sorted(case.answers)
        assert writer.tokenizer.decode(case.prompt_ids.tolist()) == case.prompt


@pytest.mark.parametrize("name", NIAH)
def test_needles_are_of_their_kind_and_number(writer, essays, name):
    haystack, key_kind, value_kind, n_needles, n_keys, n_queries, n_answers = NIAH[name]
    sources = Sources.read(str(essays), None, None)
    for index in range(5):
        case = case_of(writer, sources, name, 1500, index)
        found = needles(case.prompt)
        assert {kind for kind, _, _ in found} == {value_kind}
        assert all(re.fullmatch(KINDS[key_kind], key) for _, key, _ in found)
        assert all(re.fullmatch(KINDS[value_kind], value) for _, _, value in found)
        assert len({value for _, _, value in found}) == len(found)
        if n_needles is None:
            assert len({key for _, key, _ in found}) == len(found) > 5
        else:
            assert (len(found), len({key for _, key, _ in found})) == (n_needles, n_keys)
        asked = case.prompt.split("\n")[-1]
        assert sum(key in asked for key in {key for _, key, _ in found}) == n_queries
        assert len(case.answers) == n_answers
        several = n_answers > 1
        assert case.prompt.startswith("Some special magic" if several else "A special magic")
        assert case.prompt.endswith("mentioned in the provided text are" if several else "provided text is")
        check_haystack(haystack, case)


def check_haystack(kind, case):
    """Take the needles out of the haystack and compare what is left with its source."""
    _, *body, _ = case.prompt.split("\n")
    needle = re.compile(r"One of the special magic \w+ for \S+ is: [\w-]+\.")
    if kind == "essays":
        (text,) = body
        left = " ".join(needle.sub("", text).split())
        numbers = [int(n) for n in re.findall(r"sentence (\d+) of part \d, and the next", left)]
        assert len(numbers) > 20
        assert numbers == list(range(len(numbers))), "from the beginning, in the file's order"
    else:
        rest = [line for line in body if not needle.fullmatch(line)]
        assert rest == ([NOISE] * len(rest) if kind == "noise" else []), "lines are whole"


def test_depths_are_where_needles_stand_and_cover_the_haystack(merging, made_up):
    from eval.engine.cases import Writer

    writer, seen = Writer(merging), []
    for index in range(40):
        case = case_of(writer, made_up, "niah_single_1", 1200, index)
        _, *body, _ = case.prompt.split("\n")
        place = next(k for k, line in enumerate(body) if line.startswith("One of"))
        (depth,) = case.facts["depths"]
        assert place == int(depth * (len(body) - 1))
        seen.append(depth)
    assert min(seen) < 0.1
    assert max(seen) > 0.9
    assert len(set(seen)) > 15
    several = [case_of(writer, made_up, "niah_multikey_1", 900, index).facts["depths"] for index in range(20)]
    assert all(a < b for depths in several for a, b in itertools.pairwise(depths))
    assert all(round(depth * 39, 9) == round(depth * 39) for depths in several for depth in depths)


def test_noise_is_laid_as_by_the_official_generator(made_up):
    """The hashes are of its own texts: NVIDIA/RULER f682453 (vt) and c3f5e3b (niah), seed 42, 40 lines."""
    names, places = ["QAHFT", "RXCKA", "FNAFQ", "OFPVA", "USIEY"], [5, 6, 21, 22, 24]
    shares = [(place - k + 0.5) / (40 - 5 + 1) for k, place in enumerate(places)]
    tracing = Chains([names], [25795], [shares]).prompt(40 * 5)
    assert hashlib.sha256(tracing.encode()).hexdigest()[:16] == "fa4d6b98ec9fa586"
    family, pair = TASKS["niah_single_1"].family, ("tenuous-thirst", "2867825")
    context, _ = family.context([pair], [1.5 / 40], made_up.essays, None, None)
    text = family.prompt(context(40), [pair[0]])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "6e8b0b3a6f346e9e"


def test_a_chain_has_four_hops_in_order_and_apart(writer, made_up):
    for index, length in itertools.product(range(4), (700, 1000, 2000)):
        case = case_of(writer, made_up, "vt", length, index)
        task = case.prompt[case.prompt.rindex("Memorize and track") :]
        statements = re.findall(r"VAR \w+ = (?:VAR )?\w+", task)
        first = re.fullmatch(r"VAR ([A-Z]{5}) = ([1-9]\d{4})", statements[0])
        name, value = first.groups()
        names = [name]
        assert len(statements) == 5
        for statement in statements[1:]:
            new, old = re.fullmatch(r"VAR ([A-Z]{5}) = VAR ([A-Z]{5})", statement).groups()
            assert old == names[-1]
            names.append(new)
        assert len(set(names)) == 5
        assert tuple(names) == case.answers
        assert f"5 variables are assgined the value {value}, they are:" in task
        assert not re.search(r"VAR \w+ = (?:VAR )?\w+ VAR", task), "never side by side"
        body = task[task.index("\n\n") + 2 : task.rindex("\nQuestion:")]
        left = " ".join(re.sub(r"VAR \w+ = (?:VAR )?\w+", "", body).split())
        assert (f"{NOISE} " * 200).startswith(left)
        assert left.endswith("."), "sentences are whole"


def test_tracing_is_shown_by_an_example_where_it_leaves_half_of_the_room(writer, made_up):
    shown = {}
    least = least_length(writer, made_up, TASKS["vt"], 256, 3, 1)
    for length in (least, 760, 1100, 4096):
        case = case_of(writer, made_up, "vt", length)
        example, _, _ = case.prompt.rpartition("Memorize and track")
        shown[length] = bool(example)
        assert case.facts["example"] == bool(example)
        if example:
            answer = example.strip().split("they are: ")[1].split(" ")
            assert answer == solve(example)
            assert all(re.fullmatch("[A-Z]{3}", name) for name in answer)
            assert len(answer) == 5
            most = min(500, (length - 30) // 2)
            assert most - writer.count(NOISE) <= writer.count(example) <= most + 1  # a token may reach across its end
    assert shown[760] or writer.tokenizer.get_vocab_size() < 1000, "half of 730 tokens are enough for an example"
    assert {**shown, 760: None} == {least: False, 760: None, 1100: True, 4096: True}


def test_chains_beside_the_one_asked_for_have_other_values(merging, made_up):
    import numpy as np

    from eval.engine.cases import Turn, Writer, finish
    from eval.ruler.vt import Tracing

    writer = Writer(merging)
    turn = Turn(1500, 30, 0, 0, np.random.default_rng(5))
    case = finish(Tracing(chains=3, hops=2).draft(writer, made_up, turn), writer, turn)
    task = case.prompt[case.prompt.rindex("Memorize and track") :]
    assert len(re.findall(r"VAR \w+ = \d+", task)) == 3
    assert len(re.findall(r"VAR \w+ = VAR \w+", task)) == 6
    assert solve(case.prompt) == list(case.answers)
    assert len(case.answers) == 3
    body = task[task.index("\n\n") + 2 : task.rindex("\nQuestion:")]
    left = " ".join(re.sub(r"VAR \w+ = (?:VAR )?\w+", "", body).split())
    assert (f"{NOISE} " * 99).startswith(left)
    assert len(left) > 1000
    places = {
        name: place
        for chain, where in zip(case.facts["chains"], case.facts["places"])
        for name, place in zip(chain, where)
    }
    names = re.findall(r"VAR (\w+) =", task)
    assert names == sorted(names, key=places.get)
    assert [name in case.answers for name in names] != sorted((name in case.answers for name in names), reverse=True)


@pytest.mark.parametrize(("length", "repeats"), [(4096, (30, 3)), (6000, (30, 3)), (4095, (6, 1)), (2000, (6, 1))])
def test_common_words_stand_30_times_and_others_3_times(merging, made_up, length, repeats):
    from eval.engine.cases import Writer

    case = case_of(Writer(merging), made_up, "cwe", length)
    counts = Counter(listed(case.prompt))
    assert Counter(counts.values()) == {repeats[0]: 10, repeats[1]: len(counts) - 10}
    assert {word for word, count in counts.items() if count == repeats[0]} == set(case.answers)
    assert (len(counts), case.facts["repeats"]) == (case.facts["words"], list(repeats))
    assert len(counts) >= 20
    example, _, _ = case.prompt.rpartition("Below is a numbered list")
    assert bool(example) == case.facts["example"]
    if example:
        shown = Counter(listed(example))
        often, seldom, n = (10, 3, 40) if length >= 4096 else (3, 1, 20)
        assert Counter(shown.values()) == {often: 10, seldom: n - 10}
        answer = re.findall(r"(\d+)\. (\w+)", example.split("in the list are:")[1])
        assert [number for number, _ in answer] == [str(k) for k in range(1, 11)]
        assert {word for _, word in answer} == {word for word, count in shown.items() if count == often}
        assert not set(shown) & set(counts)


def test_the_list_is_shuffled(merging, made_up):
    from eval.engine.cases import Writer

    words = listed(case_of(Writer(merging), made_up, "cwe", 6000).prompt)
    half = len(words) // 2
    early, late = Counter(words[:half]), Counter(words[half:])
    common = [word for word, count in Counter(words).items() if count == 30]
    assert all(5 <= early[word] <= 25 for word in common)
    assert all(5 <= late[word] <= 25 for word in common)


def test_long_lists_go_on_with_made_up_words(merging, made_up):
    from eval.engine.cases import Writer

    case = case_of(Writer(merging), made_up, "cwe", 40_000)
    known = {word for words in english().values() for word in words}
    others = {word for word in listed(case.prompt) if word not in known}
    assert len(others) == case.facts["made_up_words"] > 100
    assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){4}", word) for word in others)
    assert set(case.answers) <= known


def test_common_words_come_from_the_package_that_is_named(merging, monkeypatch):
    from eval.engine.cases import Writer

    given = [f"word{k}" for k in range(3000)]
    module = type("wonderwords", (), {"RandomWord": type("Words", (), {"filter": lambda _: given + given})})
    monkeypatch.setitem(sys.modules, "wonderwords", module)
    sources = Sources.read(None, None, None, "wonderwords")
    case = case_of(Writer(merging), sources, "cwe", 40_000)
    assert set(listed(case.prompt)) <= {*given}
    assert sources.names["words"] != Sources.read(None, None, None).names["words"] == STANDIN
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    line = r"^wonderwords: not installed, needed for --words=wonderwords; pip install -e '\.\[ruler\]'$"
    with pytest.raises(MissingPackage, match=line):
        Sources.read(None, None, None, "wonderwords")


def test_the_package_has_rulers_words():
    pytest.importorskip("wonderwords")
    words = Sources.read(None, None, None, "wonderwords").words
    assert len(words) == 8166  # the union of its three lists in the official generator, 3.0.1, by their SHA-256
    assert digest("\n".join(words)) == "393572555cfe9c15"


@pytest.mark.parametrize("length", [450, 700, 1000, 4096])
def test_coded_words_follow_a_zeta_law(writer, made_up, length):
    for index in range(2):
        case = case_of(writer, made_up, "fwe", length, index)
        counts = Counter(coded(case.prompt))
        dots = counts.pop("...")
        assert all(re.fullmatch("[a-z]{6}", word) for word in counts)
        found = sorted(counts.values(), reverse=True)

        def law(n, ranks=len(found) + 1):
            return [math.floor(n * 6 / (math.pi * rank) ** 2) for rank in range(2, ranks + 1)]

        # the last rank that a vocabulary of length // 50 words has may be left out, all others stand as often as due
        n_words = [n for n in range(27, 20 * found[0]) if law(n) == found and math.floor(n * 6 / math.pi**2) <= dots]
        assert n_words, f"no text length has these counts: {found}"
        assert len(found) + 1 <= max(5, length // 50)
        assert [counts[word] for word in case.answers] == found[:3]
        assert found[2] > found[3] if len(found) > 3 else found[2] > 0


OFFICIAL_COUNTS = {  # by rank in a text of so many words of the official generator, commit f682453
    938: [570, 142, 63, 35, 22, 15, 11, 8, 7, 5, 4, 3, 3, 2, 2, 2] + [1] * 7,
    1621: [985, 246, 109, 61, 39, 27, 20, 15, 12, 9, 8, 6, 5, 5, 4, 3, 3, 3] + [2] * 4 + [1] * 9,
}


@pytest.mark.parametrize("n_words", OFFICIAL_COUNTS)
def test_counts_are_those_of_the_official_generator(n_words):
    counts = FrequentWords().counts(n_words, 200)
    assert [count for count in counts if count] == OFFICIAL_COUNTS[n_words]


@pytest.mark.parametrize(
    ("name", "official"),  # SHA-256 of the official template and start of the answer, commit f682453
    [
        ("COMMON_WORDS", "07425c62b2f3cc50"),
        ("FREQUENT_WORDS", "4119b6f531854cc6"),
        ("QUESTION", "1e0d6be4092f1e5c"),
    ],
)
def test_the_text_around_lists_and_documents_is_the_official_one(name, official):
    assert digest(getattr(wording, name).format(context="CONTEXT", query="QUERY")) == official


def test_text_lengths_leave_no_doubt_about_the_third_word():
    found = FrequentWords().clear_lengths()
    fourth, fifth = ([math.floor(n * 6 / (math.pi * rank) ** 2) for n in range(200)] for rank in (4, 5))
    clear = [n for n in range(200) if fourth[n] > fifth[n]]
    assert clear[:15] == list(range(27, 42))
    assert clear[15] == 53
    assert found == clear[: len(found)]
    assert clear[len(found) - 1 :] == list(range(found[-1], 200)), "from there on there is no doubt"


def test_questions_are_answered_by_their_documents(writer, squad, hotpotqa):
    sources = Sources.read(None, str(squad), str(hotpotqa))
    asked = set()
    for index in range(8):
        case = case_of(writer, sources, "qa_1", 1200, index)
        found = documents(case.prompt)
        article, paragraph = re.search(r"paragraph (\d) of article (\d+)", case.prompt).group(2, 1)
        gold = [
            k
            for k, text in enumerate(found, start=1)
            if text.startswith(f"Paragraph {paragraph} of article {article}.")
        ]
        assert gold == case.facts["gold"]
        assert case.answers == (f"shade{article}x{paragraph}", f"the shade{article}x{paragraph}")
        assert sum(f" of article {article}." in text for text in found) == 3, "the article's own paragraphs first"
        assert len(set(found)) == len(found) == case.facts["documents"] > 3
        asked.add((article, paragraph))
        two = case_of(writer, sources, "qa_2", 900, index)
        found = documents(two.prompt)
        (author,) = re.findall(r"home of author (\d+)\?", two.prompt)
        assert two.answers == (f"river{author}",)
        titles = [text.split("\n")[0] for text in found]
        assert {f"Author {author}", f"Town {author}", *(f"Other {author} {k}" for k in range(3))} <= set(titles)
        assert two.facts["gold"] == sorted(titles.index(t) + 1 for t in (f"Author {author}", f"Town {author}"))
        assert len(set(titles)) == len(titles) > 5
    assert len(asked) == 8


def test_only_as_many_near_documents_as_fit_are_there(merging, hotpotqa):
    from eval.engine.cases import Writer

    sources = Sources.read(None, None, str(hotpotqa))
    case = case_of(Writer(merging), sources, "qa_2", 260)
    assert 2 <= len(documents(case.prompt)) < 5
    assert {text.split(" ")[0] for text in documents(case.prompt)} >= {"Town", "Author"}


def test_documents_and_questions_stand_in_any_order(merging, squad):
    from eval.engine.cases import Writer

    sources = Sources.read(None, str(squad), None)
    places = [case_of(Writer(merging), sources, "qa_1", 700, index).facts["gold"][0] for index in range(20)]
    assert len(set(places)) > 4


def test_no_word_stands_inside_another():
    words = [word for words in english().values() for word in words]
    assert len(set(words)) == len(words) > 1300
    assert all(re.fullmatch("[a-z]{4,}", word) for word in words)
    assert not [(a, b) for a, b in itertools.permutations(words, 2) if a in b]
    assert holds_english("xx" + words[0] + "y")
