"""Files of questions in the forms of SQuAD and HotpotQA."""

import json

import pytest

from eval.ruler.sources import read_sources


@pytest.fixture(scope="session")
def squad(tmp_path_factory):
    """Twenty articles of three paragraphs with a question each, and one that cannot be answered."""
    articles = []
    for a in range(20):
        paragraphs = []
        for p in range(3):
            context = f"Paragraph {p} of article {a}. Its colour is shade{a}x{p}. " + "More follows here. " * 4
            answers = [{"text": f"{the}shade{a}x{p}"} for the in ("", "", "the ")]
            asked = {"question": f"Which colour has paragraph {p} of article {a}?", "answers": answers}
            none = {"question": "Which has none?", "is_impossible": True, "answers": [{"text": "none"}]}
            paragraphs.append({"context": context, "qas": [{**asked, "is_impossible": False}, none]})
        articles.append({"paragraphs": paragraphs})
    path = tmp_path_factory.mktemp("squad") / "squad.json"
    path.write_text(json.dumps({"data": articles}))
    return str(path)


@pytest.fixture(scope="session")
def hotpotqa(tmp_path_factory):
    """Questions with two supporting paragraphs among five."""
    items = []
    for q in range(30):
        town = [f"Town {q}", [f"Town {q} is small.", f" Through it flows river{q}."]]
        others = [[f"Other {q} {k}", [f"Other {q} {k} is another text.", " It says little."]] for k in range(3)]
        author = [f"Author {q}", [f"Author {q} lives in Town {q}."]]
        item = {"question": f"Which river flows through the home of author {q}?", "answer": f"river{q}"}
        facts = [[f"Author {q}", 0], [f"Town {q}", 1]]
        items.append({**item, "supporting_facts": facts, "context": [town, *others, author]})
    path = tmp_path_factory.mktemp("hotpotqa") / "hotpotqa.json"
    path.write_text(json.dumps(items))
    return str(path)


@pytest.fixture(scope="session")
def sources(squad, hotpotqa):
    return read_sources(squad=squad, hotpotqa=hotpotqa)
