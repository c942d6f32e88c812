"""What every command on a model does alike: methods without effect are measured and noted, and text has its field."""

import importlib
import json

import pytest

IDLE = {  # a method that changes nothing at the length: DCA at its training length, and others
    "perplexity": (
        "--documents=2 --lengths=48 --position.distance.method=dca --position.distance.train_len=64",
        "note: --position.distance: changes nothing in 48 tokens (chunk=48: ",
    ),
    "methods": (
        "--lengths=200 --train_len=700 --tests=2 --methods=rope,string",
        "note: --methods=string: changes nothing in 200 tokens (",
    ),
}


def run(command, words, capsys):
    status = importlib.import_module(f"eval.{command}.__main__").main([str(word) for word in words])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("command", IDLE)
def test_a_method_without_effect_is_measured_with_a_note(run_folder, tmp_path, capsys, command):
    words, note = IDLE[command]
    status, _, errors = run(command, [run_folder, *words.split(), "-o", tmp_path], capsys)
    assert status == 0, errors
    assert [line[: len(note)] for line in errors.splitlines() if "note:" in line] == [note]
    rows = [json.loads(line) for line in (tmp_path / f"{command}.jsonl").read_text().splitlines()]
    assert rows[-1]["method"] != "rope+plain"


COMMANDS = {"perplexity": "--documents=2 --lengths=32", "entropy": "--texts=2 --tokens=32"}


@pytest.mark.parametrize("command", COMMANDS)
def test_rows_of_text_have_a_field_of_any_name(run_folder, tmp_path, capsys, command):
    lines = [json.dumps({"id": n, "body": " ".join(f"word {n * k}." for k in range(60))}) for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    words = [run_folder, *COMMANDS[command].split(), f"--text={tmp_path / 'rows.jsonl'}"]
    status, _, errors = run(command, words, capsys)
    assert (status, errors.count("\n")) == (2, 1)
    assert "must hold JSON with `text` (no text there, its fields: id, body); name its field with --text" in errors
    assert run(command, [*words, "--text_field=body"], capsys)[0] == 0
