"""Line retrieval: its texts, a model with known answers, and eval.lines as a command."""

import re

import pytest

from eval.engine.cases import Writer
from eval.lines import draw_case, main
from tests.eval.commands import rows_named, runner, words_of

LINE = re.compile(r"^line ([a-z]+-[a-z]+): REGISTER_CONTENT is <([0-9]+)>$", re.MULTILINE)
QUESTION = re.compile(
    r"\nNow the record is over\. Tell me what is the <REGISTER_CONTENT> in line (\S+)\? I need the number\."
)


@pytest.mark.parametrize("name", ["bpe", "bytewise"])
@pytest.mark.parametrize("protocol", ["longeval", "completion"])
def test_the_record_holds_the_answer_once(request, name, protocol):
    writer = Writer(request.getfixturevalue(name))
    places = []
    for index in range(12):
        case = draw_case(writer, protocol, lines=30, seed=2, index=index)
        assert case.prompt.startswith("Below is a record of lines I want you to remember. Each line begins with")
        pairs = LINE.findall(case.prompt)
        assert len(dict(pairs)) == len(pairs) == 30
        assert len({number for _, number in pairs}) == 30
        assert all(1 <= int(number) <= 50_000 for _, number in pairs)
        asked = QUESTION.search(case.prompt)[1]
        assert case.answers == (dict(pairs)[asked],)
        ending = "" if protocol == "longeval" else f"\nThe <REGISTER_CONTENT> in line {asked} is <"
        assert case.prompt.endswith(f"in line {asked}? I need the number.{ending}")
        assert (case.facts["lines"], pairs[case.facts["line"]][0]) == (30, asked)
        places.append(case.facts["line"])
    assert len(set(places)) > 6
    assert min(places) < 10
    assert max(places) > 20


run = runner(main)
rows_of = rows_named("lines.jsonl")


def test_a_length_is_filled_with_lines(hugging_face_folder, bpe, tmp_path, capsys):
    words = [hugging_face_folder, "--lengths=700,1100", "--tests=2", "-o", tmp_path]
    status, out, _ = run(words, capsys)
    assert status == 0
    rows = rows_of(tmp_path)
    for row, length in zip(rows, (700, 1100), strict=True):
        room, held = length - row["answer_budget"], []
        for index in range(2):
            cases = [draw_case(Writer(bpe), "longeval", lines=n, seed=0, index=index) for n in range(2, 60)]
            held.append(1 + sum(len(case.prompt_ids) <= room for case in cases))
        assert row["lines"] == {"least": min(held), "most": max(held)}
        assert (row["asked"], room - 40 < row["prompt_tokens"]["most"] <= room) == (length, True)
    assert [str(rows[0]["lines"]["most"]), str(rows[0]["length"]), "0.0", "0.0", "to", "84.2"] in words_of(out)
