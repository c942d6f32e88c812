import pytest

from lab.data.preparation import prepare
from tests.data.stores import text_config, write_corpus


@pytest.fixture
def made(tmp_path):
    """A prepared text corpus: its config and the texts of each file."""
    texts = write_corpus(tmp_path / "corpus")
    config = text_config(tmp_path)
    prepare(config, progress=False)
    return config, texts
