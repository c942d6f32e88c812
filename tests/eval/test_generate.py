"""The command that continues a text, against a full pass of the model for every token."""

import pytest
import torch

from eval.generate import main
from lab.loading import open_model


def test_the_most_likely_tokens_follow_until_the_document_ends(run_folder, capsys):
    model = open_model(run_folder)
    stop = model.tokenizer.token_to_id("<eos>")
    text = "The number is\n" + "long, and on several lines; " * 8  # of more bytes than a path has
    expected = list(model.tokenizer.encode(text).ids)
    while expected[-1] == stop:  # which the tokenizer may put after a text
        expected.pop()
    for _ in range(12):
        with torch.no_grad():
            token = int(model.decoder(torch.tensor([expected]))[0, -1].argmax())
        expected.append(token)
        if token == stop:
            break
    assert main([str(run_folder), text, "--tokens=12"]) == 0
    assert capsys.readouterr().out == model.tokenizer.decode(expected) + "\n"


MISTAKES = {
    "x": "TEXT: must be the second argument",
    "x text": "x: no such folder",
    "RUN text more": "more: not a setting",
    "RUN text --tokens=0": "--tokens=0: must be >= 1",
    "RUN text --tokens=999999999": "--tokens=999999999: must be <= ",
    "RUN": "TEXT: must be the second argument",
    "--tokens=3": "--tokens=3: MODEL must be the first argument",
}


@pytest.mark.parametrize(("words", "start"), MISTAKES.items())
def test_a_mistake_is_one_line(words, start, run_folder, capsys):
    assert main([str(run_folder) if word == "RUN" else word for word in words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[: len(start)]) == ("", 1, start)
