"""What stands in the prompts of the 13 tasks, read off their text."""

import hashlib
import itertools
import re
import sys
from collections import Counter

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from eval.engine.cases import Writer
from eval.ruler import texts
from eval.ruler.sources import DOCUMENT, QUESTION, insert, name_source, read_sources
from eval.ruler.tasks import TASKS
from eval.ruler.texts import NEEDLE, ask, trace
from lab.core.errors import LabError, MissingPackage
from tests.eval.ruler.oracle import documents, listed, needles, solve

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KINDS = {"words": r"[a-z]+-[a-z]+", "numbers": r"[1-9][0-9]{6}", "uuids": UUID}
NIAH = {  # haystack, kind of keys, kind of values, needles, distinct keys, queries
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("essays", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("essays", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("essays", "words", "numbers", 4, 4, 1),
    "niah_multikey_2": ("needles", "words", "numbers", None, None, 1),
    "niah_multikey_3": ("needles", "uuids", "uuids", None, None, 1),
    "niah_multivalue": ("essays", "words", "numbers", 4, 1, 1),
    "niah_multiquery": ("essays", "words", "numbers", 4, 4, 4),
}


MARKS = {2: None, 3: None}  # of questions and answers, which prompts without a chat have not


@pytest.fixture(scope="session")
def merging():
    """A byte-level BPE without special tokens that merges digits: a number is a few tokens, not one for each digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    templates = [NOISE, NEEDLE, texts.NEEDLE_ONE, texts.NEEDLE_SEVERAL, texts.TRACING]
    templates += [texts.COMMON_WORDS, texts.FREQUENT_WORDS, DOCUMENT, QUESTION]
    numbers = [" ".join(str(n * 7919 % 9_000_000 + 1_000_000) for n in range(3000))]
    tokenizer.train_from_iterator([*templates, *numbers], trainer)
    assert len(tokenizer.encode(" 1234567").ids) < 6
    return tokenizer


@pytest.fixture(scope="session", params=["bpe", "merging"])
def writer(request):
    return Writer(request.getfixturevalue(request.param))


def case_of(writer, sources, name, length, index=0, seed=3):
    task = TASKS[name]
    return task.case(task.turn(writer, sources, length, task.budget, seed, index))


def test_budgets_and_scores_are_those_of_ruler():
    budgets = {**dict.fromkeys(NIAH, 128), "vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}
    assert {task.name: task.budget for task in TASKS.values()} == budgets
    assert {task.name for task in TASKS.values() if task.score.__name__ == "any_part"} == {"qa_1", "qa_2"}


@pytest.mark.parametrize("name", NIAH)
def test_needles_are_of_their_kind_and_number(writer, tmp_path, name):
    haystack, key_kind, value_kind, n_needles, n_keys, n_queries = NIAH[name]
    needle = re.compile(r"One of the special magic \w+ for \S+ is: [\w-]+\.")
    essays = "\n\n".join(f"This is sentence {k} of part 0, and the  next one is {k + 1}." for k in range(400))
    (tmp_path / "essays.txt").write_text(essays)
    sources = read_sources(essays=str(tmp_path / "essays.txt"))
    for index in range(5):
        case = case_of(writer, sources, name, 1500, index)
        found = needles(case.prompt)
        kinds, keys, values = zip(*found, strict=True)
        assert {*kinds} == {value_kind}
        assert all(re.fullmatch(KINDS[key_kind], key) for key in keys)
        assert all(re.fullmatch(KINDS[value_kind], value) for value in values)
        assert len({*values}) == len(found)
        if n_needles is None:
            assert len({*keys}) == len(found) > 5
        else:
            assert (len(found), len({*keys})) == (n_needles, n_keys)
        first, *body, asked = case.prompt.split("\n")
        assert sum(key in asked for key in {*keys}) == n_queries
        several = name in ("niah_multivalue", "niah_multiquery")
        assert first.startswith("Some special magic" if several else "A special magic")
        assert asked.endswith("mentioned in the provided text are" if several else "provided text is")
        if haystack == "essays":
            left = needle.sub("", *body).split()
            assert left == essays.split()[: len(left)], "from the beginning, in the file's order"
            assert len(left) > 100
        else:
            rest = [line for line in body if not needle.fullmatch(line)]
            assert rest == ([NOISE] * len(rest) if haystack == "noise" else []), "lines are whole"


def test_noise_is_laid_as_by_the_official_generator():
    """The hashes are of its own texts: NVIDIA/RULER f682453 (vt) and c3f5e3b (niah), seed 42, 40 lines."""
    names, places = ["QAHFT", "RXCKA", "FNAFQ", "OFPVA", "USIEY"], [5, 6, 21, 22, 24]
    shares = [(place - k + 0.5) / (40 - 5 + 1) for k, place in enumerate(places)]
    tracing = trace((names, 25795, shares), 40 * 5)
    assert hashlib.sha256(tracing.translate(MARKS).encode()).hexdigest()[:16] == "fa4d6b98ec9fa586"
    needle = NEEDLE.format(kind="numbers", key="tenuous-thirst", value="2867825")
    context = "\n".join(insert([NOISE] * 40, [needle], [1]))
    text = ask(context, ["tenuous-thirst"], "numbers", several=False)
    assert hashlib.sha256(text.translate(MARKS).encode()).hexdigest()[:16] == "6e8b0b3a6f346e9e"


def test_a_chain_has_four_hops_in_order_and_apart(writer, sources):
    for index, length in itertools.product(range(4), (700, 1000, 2000)):
        case = case_of(writer, sources, "vt", length, index)
        task = case.prompt[case.prompt.rindex("Memorize and track") :]
        (_, value), *hops = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?([A-Z]{5}|[1-9]\d{4})\b", task)
        assert len(set(case.answers)) == 5
        assert hops == [(new, old) for old, new in itertools.pairwise(case.answers)]
        assert f"5 variables are assgined the value {value}, they are:" in task
        assert not re.search(r"VAR \w+ = (?:VAR )?\w+ VAR", task), "never side by side"
        body = task[task.index("\n\n") + 2 : task.rindex("\nQuestion:")]
        left = " ".join(re.sub(r"VAR \w+ = (?:VAR )?\w+", "", body).split())
        assert (f"{NOISE} " * 200).startswith(left)
        assert left.endswith("."), "sentences are whole"


@pytest.mark.parametrize(("length", "repeats"), [(4096, (30, 3)), (6000, (30, 3)), (4095, (6, 1))])
def test_common_words_stand_30_times_and_others_3_times(merging, length, repeats, sources):
    case = case_of(Writer(merging), sources, "cwe", length)
    counts = Counter(listed(case.prompt))
    assert Counter(counts.values()) == {repeats[0]: 10, repeats[1]: len(counts) - 10}
    assert {word for word, count in counts.items() if count == repeats[0]} == set(case.answers)
    assert len(counts) >= 20
    example, _, _ = case.prompt.rpartition("Below is a numbered list")
    assert bool(example) == (length != 4096)  # where list and example of 30 times do not fit together
    if example:
        shown = Counter(listed(example))
        often, seldom, n = (10, 3, 40) if length >= 4096 else (3, 1, 20)
        assert Counter(shown.values()) == {often: 10, seldom: n - 10}
        answer = re.findall(r"(\d+)\. (\w+)", example.split("in the list are:")[1])
        assert [number for number, _ in answer] == [str(k) for k in range(1, 11)]
        assert {word for _, word in answer} == {word for word, count in shown.items() if count == often}
        assert not set(shown) & set(counts)


def test_words_of_a_package_that_is_not_there_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    with pytest.raises(MissingPackage, match=r"--words=wonderwords.*\.\[ruler\]"):
        read_sources(words="wonderwords")


def test_the_package_has_rulers_words():
    pytest.importorskip("wonderwords")
    words = read_sources(words="wonderwords")["words"]
    assert len(words) == 8166  # the union of its three lists in the official generator, 3.0.1, by their SHA-256
    assert name_source(words) == "393572555cfe9c15"


OFFICIAL_COUNTS = {  # by rank in a text of so many words of the official generator, commit f682453
    938: [570, 142, 63, 35, 22, 15, 11, 8, 7, 5, 4, 3, 3, 2, 2, 2] + [1] * 7,
    1621: [985, 246, 109, 61, 39, 27, 20, 15, 12, 9, 8, 6, 5, 5, 4, 3, 3, 3] + [2] * 4 + [1] * 9,
}


@pytest.mark.parametrize("n_words", OFFICIAL_COUNTS)
def test_counts_are_those_of_the_official_generator(n_words):
    counts = texts.counts(n_words, 200)
    assert [count for count in counts if count] == OFFICIAL_COUNTS[n_words]


def test_the_text_around_lists_and_documents_is_the_official_one():
    """By the SHA-256 of the official template and start of the answer, commit f682453."""
    around = [texts.COMMON_WORDS, texts.FREQUENT_WORDS, QUESTION]
    found = [name_source(text.format(context="CONTEXT", query="QUERY").translate(MARKS)) for text in around]
    assert found == ["07425c62b2f3cc50", "4119b6f531854cc6", "1e0d6be4092f1e5c"]


def test_questions_are_answered_by_their_documents(writer, sources):
    asked = set()
    for index in range(8):
        case = case_of(writer, sources, "qa_1", 1200, index)
        found = documents(case.prompt)
        article, paragraph = re.search(r"paragraph (\d) of article (\d+)", case.prompt).group(2, 1)
        assert sum(text.startswith(f"Paragraph {paragraph} of article {article}.") for text in found) == 1
        assert case.answers == (f"shade{article}x{paragraph}", f"the shade{article}x{paragraph}")
        assert sum(f" of article {article}." in text for text in found) == 3, "the article's own paragraphs first"
        assert len(set(found)) == len(found) > 3
        asked.add((article, paragraph))
        two = case_of(writer, sources, "qa_2", 900, index)
        found = documents(two.prompt)
        (author,) = re.findall(r"home of author (\d+)\?", two.prompt)
        assert two.answers == (f"river{author}",)
        titles = [text.split("\n")[0] for text in found]
        assert {f"Author {author}", f"Town {author}", *(f"Other {author} {k}" for k in range(3))} <= set(titles)
        assert len(set(titles)) == len(titles) > 5
    assert len(asked) == 8


BEGIN, END = "<|user|>", "<|end|><|assistant|>"


@pytest.mark.parametrize("task", [task.name for task in TASKS.values()])
def test_a_chat_stands_around_the_task_and_before_the_answers_first_words(merging, task, sources):
    tokenizer = Tokenizer.from_str(merging.to_str())
    tokenizer.add_special_tokens([BEGIN, "<|end|>", "<|assistant|>"])
    chat = Writer(tokenizer, lambda question: BEGIN + question + END, special=True)
    length = 2500 if task.startswith("qa") else 8000  # files of questions have an end
    case = case_of(chat, sources, task, length)
    n = 2 if task in ("vt", "cwe") else 1  # whose worked example is asked as the task is
    assert case.prompt.startswith(BEGIN)
    question, answer = case.prompt.rsplit(END, 1)
    assert re.search(r"[?.]$|Question: [^\n]+$", question)
    assert re.fullmatch(r" Answer:( .*:)?| The special magic .* (is|are)", answer)
    ids = case.prompt_ids.tolist()
    assert [ids.count(tokenizer.token_to_id(word)) for word in (BEGIN, "<|end|>", "<|assistant|>")] == [n] * 3
    assert len(ids) + TASKS[task].budget <= length
    assert case.answers[0] in solve(case.prompt)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_prompt_fills_its_length_and_has_the_same_answers_at_every_length(writer, task, sources):
    answers = set()
    for index, length in itertools.product(range(2), (1399, 2500)):
        case = case_of(writer, sources, task.name, length, index, 0)
        answers.add((index, case.answers))
        room = length - task.budget
        assert case.prompt_ids.tolist() == writer.tokenizer.encode(case.prompt).ids
        if task.category == "retrieval" or task.name == "vt":  # haystacks of lines or words
            lines = [NOISE] if task.name in ("niah_single_1", "vt") else re.findall(r"One of.*?: \S+\.", case.prompt)
            unit = "understandings" if task.source else max(lines, key=len)  # of essays, a word
            assert room - writer.count(f" {unit}\n") - 3 < len(case.prompt_ids) <= room
        elif task.name == "fwe":
            assert room - writer.count(" ...") < len(case.prompt_ids) <= room
        else:
            turn = task.turn(writer, sources, length, task.budget, 0, index)
            draft = task.draft(turn)
            units = len({*listed(case.prompt)}) - 10 if task.name == "cwe" else len(documents(case.prompt))
            assert draft.compose(units).translate(MARKS) == case.prompt
            assert len(case.prompt_ids) <= room < writer.count(draft.compose(units + 1))
    assert len(answers) == 2


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_least_length_named_is_the_least(writer, task, sources):
    for index in range(6):
        with pytest.raises(LabError, match=f"^--lengths=1: too short for test {index} of {task.name} ") as error:
            case_of(writer, sources, task.name, 1, index, 5)
        least = int(re.search(r"; use (\d+)", str(error.value))[1])
        case = case_of(writer, sources, task.name, least, index, 5)
        assert len(case.prompt_ids) == least - task.budget
        assert sorted(solve(case.prompt)) == sorted(case.answers)
        with pytest.raises(LabError, match=f"; use {least}"):
            case_of(writer, sources, task.name, least - 1, index, 5)
