"""lab.watch on several processes: sums over ranks, a probe that all of them run, and one that a rank cannot build."""

import logging

import pytest
import torch
from torch import distributed, nn

import lab
from tests.evidence import brute
from tests.integrations.test_watcher import N, tokens
from tests.ranks import meet

pytest.importorskip("transformers")
SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "d_ff": 16, "tie_embeddings": False}


def watched(sharding, tokenizer_path):
    """Train two forwards on this rank, probe, save, and restore; return what was counted and measured."""
    from tokenizers import Tokenizer
    from torch.distributed.fsdp import fully_shard

    from lab.model.decoder import Decoder, DecoderConfig

    meet()
    rank = distributed.get_rank()
    tokenizer = Tokenizer.from_file(tokenizer_path)
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(vocab_size=tokenizer.get_vocab_size(), **SIZES)).train()
    model = nn.parallel.DistributedDataParallel(model) if sharding == "ddp" else fully_shard(model)
    watch = lab.watch(model, tokenizer, window=96, input="tokens")
    for step in range(2):
        model(tokens(10 * rank + step)).sum().backward()
    own, total, demand = watch.frequency(), watch.frequency(reduce=True), watch.demand(reduce=True)
    table = watch.probe(tests=3, distances=[40, 60])
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("lab.watch").addHandler(handler)
    watch.tokenizer = None if rank else tokenizer  # the other rank must not wait for this one
    is_empty = watch.probe(tests=3).empty
    again = lab.watch(model, window=96, input="tokens")
    again.load_state_dict(watch.state_dict())
    restored = again.frequency(reduce=True)
    counts = [array.tolist() for array in (own, total, demand, restored)]
    return *counts, table.to_dict("list"), (is_empty, len(records))


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_ranks_are_added_up_and_probe_together(prepared, ranks, sharding):
    from lab.data.preparation import shard_folder

    first, second = ranks(2).run(watched, sharding, str(shard_folder(prepared) / "tokenizer.json"))
    own, total, demand, restored, table, failed = first
    assert [a + b for a, b in zip(own, second[0], strict=True)] == total == second[1] == restored
    assert total[:12] == [8 * (12 - i) for i in range(12)]
    rows = [row.tolist() for rank in (0, 1) for step in (0, 1) for row in tokens(10 * rank + step)]
    expected = {}
    for row in rows:
        found = brute.demand(row, [*row[1:], -100], [len(row)], lambda run, place: brute.repeat(run, place, N))
        expected = {d: expected.get(d, 0) + found.get(d, 0) for d in {*expected, *found}}
    assert demand == second[2] == [expected.get(d, 0) for d in range(96)]
    assert table == second[4]
    assert (table["n"], table["f"]) == ([3, 3], [total[40], total[60]])
    assert failed == second[5] == (True, 1)
