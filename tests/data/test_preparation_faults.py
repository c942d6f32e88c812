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
    (tmp_path / "own.json").write_text(json.dumps(settings))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": text}))
    choice = TokenizerFile(path=str(tmp_path / "own.json"), eos="<eos>")
    corpus = Text(path=str(tmp_path / "corpus.jsonl"))
    config = DataConfig(corpus=corpus, tokenizer=choice, held_out_frac=0.0, folder=str(tmp_path))
    prepare(config, progress=False)
    ids, _ = read_shard(shard_folder(config) / "task-00000", "train")[0]
    assert (ids.count(1), ids[-1]) == (1, 1)
    assert load_tokenizer(shard_folder(config)).decode(ids) == text
