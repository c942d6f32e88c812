import json

import pytest

from lab.data.config import Bpe, DataConfig, Text, TokenizerFile
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizer import load_tokenizer
from tests.data.stores import read_shard, refused, text_config


@pytest.mark.parametrize("choice", ["bpe", "file"])
@pytest.mark.parametrize("content", ['{"text": ""}\n', '{"txt": "a"}\n', ""], ids=["blank", "no_field", "no_line"])
def test_an_empty_corpus_leaves_nothing_behind(tmp_path, bpe, choice, content):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text(content)
    bpe.save(str(tmp_path / "words.json"))
    tokenizer = Bpe() if choice == "bpe" else TokenizerFile(path=str(tmp_path / "words.json"), eos="<eos>")
    config = text_config(tmp_path, tokenizer=tokenizer)
    with refused("data.corpus: empty, "):
        prepare(config, progress=False)
    assert not shard_folder(config).exists()


@pytest.mark.parametrize("special", [True, False], ids=["marked", "unmarked"])
def test_a_text_that_spells_the_end_token_stays_text(tmp_path, bpe, special):
    settings, text = json.loads(bpe.to_str()), "a page about <eos> tokens"
    for token in settings["added_tokens"]:
        token["special"] = special or token["content"] == "<bos>"
    (ids, _), prepared = prepare_lines(tmp_path, settings, [json.dumps({"text": text})])
    assert (ids.count(1), ids[-1]) == (1, 1)
    assert load_tokenizer(prepared.folder).decode(ids) == text


def prepare_lines(tmp_path, tokenizer, lines):
    """Prepare lines of JSON with a tokenizer of its own; return the first document and the summary."""
    (tmp_path / "own.json").write_text(json.dumps(tokenizer))
    (tmp_path / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))
    choice = TokenizerFile(path=str(tmp_path / "own.json"), eos="<eos>")
    corpus = Text(path=str(tmp_path / "corpus.jsonl"))
    config = DataConfig(corpus=corpus, tokenizer=choice, held_out_frac=0.0, folder=str(tmp_path))
    prepared = prepare(config, progress=False)
    return read_shard(prepared.folder / "task-00000", "train")[0], prepared


def test_ids_beyond_the_number_of_tokens_are_kept(tmp_path, bpe):
    settings = json.loads(bpe.to_str())
    vocabulary = settings["model"]["vocab"]
    (common,) = bpe.encode("e", add_special_tokens=False).ids
    (word,) = [token for token, index in vocabulary.items() if index == common]
    vocabulary[word] = 70_000  # more than two bytes hold
    ids, _ = prepare_lines(tmp_path, settings, ['{"text": "eee"}'])[0]
    assert 70_000 in ids


def test_a_normalizer_that_deletes_text_is_refused(tmp_path, bpe):
    settings = json.loads(bpe.to_str())
    settings["normalizer"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}
    with refused("tokenizer.json: turns the text a into nothing"):
        prepare_lines(tmp_path, settings, ['{"text": "a page"}'])


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "corpus").mkdir()
    with open(bytes(tmp_path / "corpus") + b"/caf\xe9.txt", "w") as file:
        file.write("a page")
    with refused(f"data.corpus.path={tmp_path / 'corpus'}: contains 'caf\\udce9.txt'"):
        prepare(text_config(tmp_path), progress=False)
