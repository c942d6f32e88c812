"""The data module: batches of arranged packs, the same on any ranks, and masks and skips as a run's config has them."""

import itertools
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lab.data.arrangement import Arrangement
from lab.data.config import DataConfig, Text, TokenizerFile
from lab.data.module import arrangement_of, to_batch
from lab.data.preparation import prepare
from lab.masks import Anchor, Causal
from tests.data.stores import module_of
from tests.data.windows import IGNORE


def packs_of(config, n_steps, *, rank=0, world_size=1, n_streams=2, states=None, **settings):
    data = module_of(config, seed=3, micro_batch_tokens=256, n_streams=n_streams, **settings)
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world_size)
    data.setup("fit")
    if states is not None:
        data.load_state_dict(states)
    batches = list(itertools.islice(data.train_dataloader(), n_steps * n_streams // world_size))
    for batch in batches:
        data.consumed(batch)
    return batches, data


def plain(batch):
    """Turn a batch into what can be compared."""
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in batch.items()}


@pytest.fixture(scope="module")
def joined(prepared):
    """The small synthetic corpus in windows of several documents."""
    return DataConfig(**{**vars(prepared), "mode": "concatenated"})


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("mask", [Causal(), Anchor(chunks=3)], ids=["plain", "anchored"])
def test_ranks_and_a_resume_change_no_batch(prepared, joined, mask, world_size):
    config, settings = (prepared if mask == Causal() else joined), {"n_streams": 4, "mask": mask}
    whole, data = packs_of(config, 4, **settings)
    assert [batch["stream"] for batch in whole] == [0, 1, 2, 3] * 4
    ranks = [packs_of(config, 4, rank=rank, world_size=world_size, **settings)[0] for rank in range(world_size)]
    each = 4 // world_size
    for step in range(4):
        shares = [plain(batch) for share in ranks for batch in share[step * each : (step + 1) * each]]
        assert sorted(shares, key=lambda batch: batch["stream"]) == [plain(b) for b in whole[4 * step : 4 * step + 4]]
    longer = packs_of(config, 7, **settings)[0]
    resumed = packs_of(config, 3, states=data.state_dict(), **settings)[0]
    assert [plain(batch) for batch in resumed] == [plain(batch) for batch in longer[16:]]


def test_packing_in_the_background_changes_no_batch(prepared):
    batches, data = packs_of(prepared, 6)
    streams = itertools.cycle([data.stream(j, {}) for j in range(2)])
    assert [plain(batch) for batch in batches] == [plain(to_batch(next(stream))) for stream, _ in zip(streams, batches)]


def test_the_anchor_is_what_ends_documents_where_nothing_begins_them(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "b": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a b a b b")
    config = DataConfig(
        corpus=Text(path=str(tmp_path / "corpus")),
        tokenizer=TokenizerFile(path=str(tmp_path / "words.json"), eos="<end>"),
        mode="concatenated",
        window=7,
        held_out_frac=0.0,
        folder=str(tmp_path / "shards"),
    )
    prepare(config, progress=False)
    assert arrangement_of(config, Anchor()) == Arrangement(mask="anchor", running=True, anchor=0, bos=None)
    data = module_of(config, seed=0, micro_batch_tokens=7, mask=Anchor())
    data.setup("fit")
    pack = next(data.stream(0))
    assert (pack.tokens.tolist(), pack.lengths, pack.anchors) == ([0, 1, 2, 1, 2, 2, 0], [1, 6], (-1, 0))
    assert pack.targets.tolist() == [IGNORE, 2, 1, 2, 2, 0, IGNORE]
