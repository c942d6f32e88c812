import pytest

from lab.data.preparation import prepare
from tests.data.slim import LONG, slim, slim_corpus, word_tokenizer
from tests.data.stores import text_config, write_corpus


@pytest.fixture(scope="session", autouse=True)
def short_documents_are_long():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.data.config.Upsample.longer_than", LONG)
        yield


@pytest.fixture
def made(tmp_path):
    """A prepared text corpus: its config and the texts of each file."""
    texts = write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path)
    prepare(config, progress=False)
    return config, texts


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A tokenizer of whole words."""
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def config(tmp_path, tokenizer):
    """An upsampled corpus of SlimPajama's form."""
    slim_corpus(tmp_path / "corpus")
    return slim(tmp_path, tokenizer)
