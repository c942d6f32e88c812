from pathlib import Path

import pytest

from tests.opened import write_run


@pytest.fixture(scope="session")
def run_folder(prepared, tmp_path_factory):
    """A small run folder, to be left as it is but for its eval/."""
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", prepared)


@pytest.fixture(scope="session")
def hugging_face_folder(bpe, tmp_path_factory):
    """A small Llama folder of transformers' with a tokenizer, to be left as it is."""
    from tests.model.folders import theirs

    folder = tmp_path_factory.mktemp("llama") / "small-llama"
    theirs(vocab_size=bpe.get_vocab_size()).save_pretrained(folder)
    bpe.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def foreign(bpe, tmp_path_factory):
    """Make small folders of families that the lab's decoder does not serve: foreign("gpt2"), foreign("gpt_neox", 2)."""
    from tests.model.test_foreign import tiny

    def make(family, seed=0):
        folder = tmp_path_factory.mktemp(family) / family
        sizes = {"vocab_size": bpe.get_vocab_size(), "max_position_embeddings": 512}
        tiny(family, seed, **sizes).save_pretrained(folder)
        bpe.save(str(folder / "tokenizer.json"))
        return folder

    return make


@pytest.fixture
def text_file(tmp_path):
    """A text of about 2,000 tokens."""
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"word {n * n % 97}." for n in range(700)))
    return path


@pytest.fixture(scope="module")
def harness_files(tmp_path_factory):
    """The harness's local tasks name their files from the repository's root; what is made of them is cached apart."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("lm_eval")
    patch = pytest.MonkeyPatch()
    patch.chdir(Path(__file__).resolve().parents[2])
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # lists all packages for half a second
    yield
    patch.undo()
