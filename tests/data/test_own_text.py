"""A stranger's text and tokenizer: what does not fit is described by what was found instead."""

import json

import pytest

from lab.config import load_experiment
from lab.data.config import Bpe, DataConfig, Text, TokenizerFile
from lab.data.preparation import prepare
from lab.errors import DataError

ROWS = [{"id": n, "body": f"document {n} of some length", "meta": {"from": "web"}} for n in range(30)]


def config(place, choice=None, **corpus):
    corpus = Text(path=str(place / "corpus"), **corpus)
    return DataConfig(corpus=corpus, tokenizer=choice or Bpe(vocab_size=300), folder=str(place / "shards"))


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus").mkdir()
    lines = [*map(json.dumps, ROWS), "{broken", "{broken", "[]"]
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("method", ["bpe", "file"])
def test_a_wrong_text_field_is_answered_with_the_fields_there_are(corpus, bpe, method):
    bpe.save(str(corpus / "words.json"))
    choice = TokenizerFile(path=str(corpus / "words.json"), eos="<eos>") if method == "file" else None
    with pytest.raises(DataError) as caught:
        prepare(config(corpus, choice), progress=False)
    assert str(caught.value) == (
        "data.corpus: empty, no document has text (30 no text in field 'text', 2 not JSON, 1 not a JSON object); "
        "set data.corpus.text_field to one of the fields id, body, meta"
    )


def test_a_file_tokenizer_sets_the_vocabulary(tmp_path, bpe):
    bpe.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "own.yaml"
    model = {"d_model": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "d_ff": 64, "tie_embeddings": False}
    data = {"corpus": {"name": "text", "path": "x"}, "tokenizer": {"path": str(tmp_path), "eos": "<eos>"}}
    path.write_text(json.dumps({"model": model, "data": data}))
    assert load_experiment(path).model.vocab_size == bpe.get_vocab_size()
    assert load_experiment(path, {"model.vocab_size": 512}).model.vocab_size == 512
    missing = {"data.tokenizer.path": str(tmp_path / "none.json")}
    with pytest.raises(DataError, match=r"^data\.tokenizer\.path=.*none\.json: no such file"):
        load_experiment(path, missing)
