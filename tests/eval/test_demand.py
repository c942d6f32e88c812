"""What the command prints: of a config and a text against a search by definition, of a run against counts by hand."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from eval.demand import main
from lab.counts import PositionCounts
from lab.data.module import PackedData
from lab.data.shards import TokenStore
from lab.runs.folder import RunFolder
from tests.eval.commands import rows_in, runner, size_of, words_of
from tests.evidence import brute
from tests.fits import CONFIG, UNPROBED, load

run = runner(main, "read")
DROPPED = "--weights.by=evidence --weights.keep=[[0,9]]"


def summed(counts, rows):
    """Sum a profile over the bins of rows."""
    return [sum(counts[row["from"] : row["to"] + 1]) for row in rows]


def found(words, capsys):
    status, out, err = run(f"{words} --json", capsys)
    assert status == 0, err
    return json.loads(out)["rows"]


@pytest.mark.parametrize("words", ["", DROPPED], ids=["plain", "dropped"])
def test_a_config_is_counted_by_definition(tmp_path, capsys, words):
    words = f"{words} --data.folder={tmp_path}"
    counted, *bins = found(f"{CONFIG} {words} --evidence.tokens=4 --tokens=9000", capsys)
    experiment = load(*words.split(), *UNPROBED)
    data = PackedData(experiment)
    data.setup()
    streams = map(next, itertools.cycle([data.stream(j) for j in range(data.n_streams)]))
    f, g, targets, tokens = np.zeros(96), np.zeros(96), 0, 0
    while tokens < 9000:
        pack = next(streams)
        tokens += sum(pack.lengths)
        targets += sum(scored[1:].count(True) for _, scored in brute.runs_of(pack.tokens, pack.targets, pack.lengths))
        f += [sum(max(n - i, 0) for n in pack.lengths) for i in range(96)]
        own = brute.demand(pack.tokens, pack.targets, pack.lengths, lambda x, p: brute.repeat(x, p, 4))
        g[[*own]] += [*own.values()]
    assert counted["evidence"] == {"method": "repeat", "tokens": 4}
    assert [row["f"] for row in bins] == summed(f, bins)
    assert [row.get("g_unweighted", row["g"]) for row in bins] == summed(g, bins)
    if words.startswith("--weights"):
        targets -= g[10:].sum()
        g[10:] = 0
    assert (counted["tokens"], counted["targets"], counted["with_evidence"]) == (tokens, targets, g.sum())
    assert [row["g"] for row in bins] == summed(g, bins)
    assert (bins[0]["from"], bins[-1]["to"]) == (1, 95)


def test_a_text_is_read_once_with_a_tokenizer_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    text = tmp_path / "notes" / "hay.md"
    text.write_text(" ".join(f"word {n * n % 97}." for n in range(70)))
    counted, *bins = found("notes/h*.md --plot --data.window=512 --data.tokenizer.vocab_size=300", capsys)
    (folder,) = (tmp_path / "shards").iterdir()
    (document,) = TokenStore.open(folder, "train").documents()
    assert 256 < len(document) <= 512, "a pack holds it once"
    g = np.zeros(512)
    for place in range(1, len(document)):
        g[brute.repeat(document.tolist(), place, 3)] += 1
    assert (counted["tokens"], counted["targets"]) == (len(document), len(document) - 1)
    assert [row["g"] for row in bins] == summed(g, bins)
    assert sum(row["g"] for row in bins) > 100
    assert Path("results/demand-hall.png").exists()


def test_a_run_shows_what_it_has_counted(run_folder, tmp_path, capsys):
    pytest.importorskip("altair")
    place = tmp_path / "counted"
    place.mkdir()
    shutil.copy(run_folder / "config.yaml", place)
    counts = PositionCounts(8)
    counts.add_segments([6, 3])
    counts.add_targets(np.array([5, 3]))
    counts.add_evidence(np.array([0, 1, 0, 0, 2, 1]), np.array([0, 1, 0, 0, 1, 0]))
    RunFolder(place).write_counts(counts)
    status, out, _ = run(f"{place} --plot -o {tmp_path}", capsys)
    assert status == 0
    first, _, *lines = [" ".join(line) for line in words_of(out)]
    assert first == "9 tokens read, 8 targets, 2 (25.0%) with evidence by repeat, tokens 3"
    # f(i) = (6 - i) + (3 - i) up to i = 2, then 6 - i; columns as the help describes them
    assert lines[:5] == ["1 7 1 1 2", "2 5 0 0 1", "3 3 0 0 1", "4-5 3 1 3 1", "6-7 0 0 0 0"]
    assert min(size_of(tmp_path / "demand-counted.png")) > 500
    assert [row["metric"] for row in rows_in(tmp_path / "demand-counted.jsonl")] == ["counted"] + 5 * ["demand"]
