import pytest

from lab.data.config import Bpe, TokenizerFile
from lab.data.preparation import prepare, shard_folder
from lab.errors import DataError
from tests.data.stores import refused, sentence, text_config, write_corpus


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


def test_a_corpus_that_is_all_held_out_is_refused(tmp_path, bpe):
    # the one text is kept from training at a share of 0.5 and not at 0, so one of ten texts will do
    bpe.save(str(tmp_path / "words.json"))
    (tmp_path / "corpus").mkdir()
    messages = []
    for number in range(10):
        (tmp_path / "corpus" / "a.txt").write_text(sentence(number))
        choice = TokenizerFile(path=str(tmp_path / "words.json"), eos="<eos>")
        config = text_config(tmp_path, tokenizer=choice, held_out_frac=0.5, folder=str(tmp_path / f"shards{number}"))
        try:
            prepare(config, progress=False)
        except DataError as error:
            messages.append(str(error))
    assert 0 < len(messages) < 10
    assert all(message.startswith("data.corpus: empty, all documents are held out; ") for message in messages)


def test_a_tokenizer_without_the_end_token_is_refused(tmp_path, bpe):
    write_corpus(tmp_path / "corpus", files=1)
    bpe.save(str(tmp_path / "words.json"))
    choice = TokenizerFile(path=str(tmp_path / "words.json"), eos="<|end_of_text|>")
    with refused("data.tokenizer.eos=<|end_of_text|>: the tokenizer has no such token; "):
        prepare(text_config(tmp_path, tokenizer=choice), progress=False)
