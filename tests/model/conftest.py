import shutil

import pytest


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """A small untied Llama folder, to be left as it is."""
    from tests.model.folders import theirs

    folder = tmp_path_factory.mktemp("llama") / "model"
    theirs().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(llama_folder, tmp_path):
    """A copy of it to change or to break."""
    return shutil.copytree(llama_folder, tmp_path / "model")
