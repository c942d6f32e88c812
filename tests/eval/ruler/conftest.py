import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from eval.engine.cases import NOISE, Writer
from eval.ruler import sources, texts
from eval.ruler.tasks import TASKS


@pytest.fixture(scope="session")
def merging():
    """A byte-level BPE without special tokens that merges digits: a number is a few tokens, not one for each digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    templates = [NOISE, texts.NEEDLE, texts.NEEDLE_ONE, texts.NEEDLE_SEVERAL, texts.TRACING]
    templates += [texts.COMMON_WORDS, texts.FREQUENT_WORDS, sources.DOCUMENT, sources.QUESTION]
    numbers = [" ".join(str(n * 7919 % 9_000_000 + 1_000_000) for n in range(3000))]
    tokenizer.train_from_iterator([*templates, *numbers], trainer)
    assert len(tokenizer.encode(" 1234567").ids) < 6
    return tokenizer


@pytest.fixture(scope="session", params=["bpe", "merging"])
def writer(request):
    return Writer(request.getfixturevalue(request.param))


@pytest.fixture(scope="session")
def made_up():
    return sources.read_sources()


@pytest.fixture
def essays(tmp_path):
    """Sentences that are all different."""
    path = tmp_path / "essays.txt"
    path.write_text("\n\n".join(f"This is sentence {k} of part 0, and the  next one is {k + 1}." for k in range(400)))
    return path


@pytest.fixture
def squad(tmp_path):
    """Twenty articles of three paragraphs with a question each, and one that cannot be answered."""
    articles = []
    for a in range(20):
        paragraphs = [
            {
                "context": f"Paragraph {p} of article {a}. Its colour is shade{a}x{p}. " + "More follows here. " * 4,
                "qas": [
                    {
                        "question": f"Which colour has paragraph {p} of article {a}?",
                        "is_impossible": False,
                        "answers": [{"text": f"{the}shade{a}x{p}"} for the in ("", "", "the ")],
                    },
                    {"question": "Which has none?", "is_impossible": True, "answers": [{"text": "none"}]},
                ],
            }
            for p in range(3)
        ]
        articles.append({"title": f"Article {a}", "paragraphs": paragraphs})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


@pytest.fixture
def hotpotqa(tmp_path):
    """Questions with two supporting paragraphs among five."""
    items = [
        {
            "question": f"Which river flows through the home of author {q}?",
            "answer": f"river{q}",
            "supporting_facts": [[f"Author {q}", 0], [f"Town {q}", 1]],
            "context": [
                [f"Town {q}", [f"Town {q} is small.", f" Through it flows river{q}."]],
                *([f"Other {q} {k}", [f"Other {q} {k} is another text.", " It says little."]] for k in range(3)),
                [f"Author {q}", [f"Author {q} lives in Town {q}."]],
            ],
        }
        for q in range(30)
    ]
    path = tmp_path / "hotpotqa.json"
    path.write_text(json.dumps(items))
    return path


MARKS = {2: None, 3: None}  # of questions and answers, which prompts without a chat have not


def case_of(writer, sources, name, length, index=0, seed=3, budget=None):
    """Draw a test of a task."""
    task = TASKS[name]
    return task.case(writer, sources, task.turn(length, budget or task.budget, seed, index))
