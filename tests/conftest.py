import functools
import os

import pytest

from tests.torture.rows import ROWS, STEADY

LENGTHS = {"median_tokens": 16.64, "section_tokens": 64.0}  # for windows of 64
# Files of the default run that take longest, which start first, or one process works alone at the end.
LONGEST = """
eval/test_measures test_stops test_faults test_resumption estimate/test_memory model/test_context_parallel
model/test_generate model/test_contract test_runs_by_definition test_recall_in_runs eval/test_probe test_imports
test_output test_platforms recipes/test_longrecipe
"""


def pytest_addoption(parser):
    parser.addoption("--torture", type=float, default=0.0, metavar="SHARE", help="share of the full counts of faults")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    if config.getoption("--torture") >= 1:  # tests that no timing can make fail, at full counts
        steady = {path.partition("::")[0] for row in STEADY for path in ROWS[row][1]}
        for item in items:
            if item.nodeid.partition("::")[0] in steady and {"repeats", "torture"} & {*item.fixturenames}:
                item.add_marker(pytest.mark.slow)
    order = {f"tests/{name}.py": place for place, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


@pytest.fixture(scope="session")
def repeats(request):
    """Choose how often to repeat: repeats(small, full); small without the option."""
    share = request.config.getoption("--torture")
    return lambda small, full: max(small, round(full * share))


@pytest.fixture(scope="session")
def torture(request, repeats):
    """Do so for a test that is skipped without the option."""
    if not request.config.getoption("--torture"):
        pytest.skip("takes minutes; run it with --torture=SHARE")
    return repeats


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that the tests of a file share."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="session", autouse=True)
def less_time(request):
    """Leave out waits for the disk, 10 ms each on a slow one, and draw once the filler that numbers are hidden in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        if request.config.option.markexpr != "gpu":  # on images that lack what corpora need
            from lab.data.config import Synthetic

            patch.setattr(Synthetic, "filler", functools.cache(Synthetic.filler))
        yield


@pytest.fixture(scope="session")
def bpe():
    """A byte-level BPE with <bos> and <eos>, trained on the synthetic corpus and on the probe's own words."""
    from lab.data import synthetic
    from lab.data.config import Synthetic
    from lab.data.tokenizer import train_bpe

    documents = map(Synthetic(words=16, **LENGTHS).document, range(60))
    fixed = synthetic.TASK + synthetic.NEEDLE + synthetic.QUESTION + synthetic.ANSWER_PREFIX
    return train_bpe([fixed, *documents], vocab_size=400)


@pytest.fixture(scope="session")
def bytewise():
    """A byte-level BPE without merges and special tokens: a token for every byte, so that places in text are tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: k for k, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The config of a small synthetic corpus whose shards are there."""
    from lab.data.config import Bpe, DataConfig, Synthetic
    from lab.data.preparation import prepare

    corpus, tokenizer = Synthetic(documents=240, words=16, **LENGTHS), Bpe(vocab_size=400)
    folder = str(tmp_path_factory.mktemp("shards"))
    config = DataConfig(corpus=corpus, tokenizer=tokenizer, window=64, held_out_frac=0.1, folder=folder, look_ahead=32)
    prepare(config, progress=False)
    return config


@pytest.fixture(scope="session")
def ranks():
    """Processes that run jobs together: ranks(2).run(job, argument)."""
    from tests.ranks import Pool

    pool = Pool()
    yield pool
    pool.stop()
