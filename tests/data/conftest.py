import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lab.data.config import TokenizerFile
from tests.data.slim import LONG


@pytest.fixture(scope="session", autouse=True)
def short_documents_are_long():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.data.config.Upsample.longer_than", LONG)
        yield


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A tokenizer of whole words: a text of n words has n + 1 tokens."""
    vocab = {"<eos>": 0, **{f"w{n}": n + 1 for n in range(500)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = str(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    tokenizer.save(path)
    return TokenizerFile(path=path, eos="<eos>")
