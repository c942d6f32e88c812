"""Runs in Python: what they return is what the files of the run folder hold."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import lab
from lab.analysis.run import DISTANCES, LENGTHS, PROBES, RECALL
from lab.counts import PositionCounts
from lab.runs.checkpoints import folder_name
from lab.runs.folder import RunFolder
from tests.fits import load, records, train
from tests.forked import LIMIT_S, ROOT
from tests.refusals import refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("analysis"), "first", "--train.tokens=10240", "--probe.every_tokens=4096")


def test_f_is_that_of_the_file(trained):
    run = lab.open_run(trained)
    np.testing.assert_array_equal(run.f(), np.load(trained / "counts.npz")["f"])
    first = run.probes().consumed_tokens[0]
    assert 0 < run.f(first)[0] == first < run.f()[0]
    with refused(f"{trained}: holds no counts/tokens-000000000000001.npz; {{}}", error=lab.core.errors.CheckpointError):
        run.f(1)


COLUMNS = {"probes": PROBES, "lengths": LENGTHS, "distances": DISTANCES}
KEYS = {"metrics": "loss", "probes": "effective_length", "lengths": "passed", "distances": "log_prob"}


@pytest.mark.parametrize("table", KEYS)
def test_tables_hold_one_kind_of_record_each(trained, table):
    found = getattr(lab.open_run(trained), table)()
    file = "metrics.jsonl" if table == "metrics" else "probes.jsonl"
    more = {"g_from_reach": None, "censored": "below"} if table == "probes" else {}  # so short a run has no reach
    expected = [record | more for record in records(trained, file) if KEYS[table] in record]
    assert list(found.columns) == list(COLUMNS.get(table, expected[0]))
    assert len(found) == len(expected) > 2
    for row, record in zip(json.loads(found.to_json(orient="records", double_precision=15)), expected, strict=True):
        for name, value in row.items():
            wanted = record[name]
            assert value == (pytest.approx(wanted, rel=1e-12) if isinstance(wanted, float) else wanted), name


def test_demand_from_the_reach_on_is_that_of_the_counts_at_the_probe(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    folder, counts = RunFolder(tmp_path), PositionCounts(6)
    probes = [{"effective_length": None, "reach": reach} for reach in (3.7, None, 5.0, 2.0)]
    folder.write_records("probes.jsonl", [{"consumed_tokens": n, **row} for n, row in enumerate(probes, start=1)])
    for tokens in (1, 2, 3):
        counts.add_evidence(np.array([0, 0, 0, 4, 2]), np.array([0, 0, 0, 3, 1]))  # g(3) = 3, g(4) = 1 a time
        folder.write_counts(counts, tokens)
    older = {"lengths": counts.lengths, "f": counts.frequency(), "tokens": 1}
    np.savez(tmp_path / f"counts/{folder_name(4)}.npz", **older)
    run = lab.open_run(tmp_path)
    assert run.probes().g_from_reach.fillna(-1).tolist() == [4, -1, 0, -1], "nothing at 5; not counted in the last"
    assert lab.frame(tmp_path).g_from_reach.equals(run.probes().g_from_reach)
    assert list(run.counts(3).profiles().values())[1].tolist() == [0, 0, 0, 9, 3, 0]
    assert len(run.counts(4).profiles()) == 1


def test_loss_by_context_and_gains_are_those_of_every_probe(trained):
    run = lab.open_run(trained)
    probes = [record for record in records(trained, "probes.jsonl") if "effective_length" in record]
    pairs = [(p["consumed_tokens"], int(c), x) for p in probes for c, x in p["context_loss"].items()]
    assert list(run.contexts().itertuples(index=False, name=None)) == pairs
    assert {0, 1, 2, 64} < set(run.contexts().context)
    bins = [{**row, "consumed_tokens": p["consumed_tokens"]} for p in probes for row in p["recall"]]
    for row, own in zip(run.recall().to_dict("records"), bins, strict=True):
        assert {name: own[name] for name in row if name != "method"} == {k: v for k, v in row.items() if k != "method"}
    assert list(run.recall().columns) == list(RECALL)


def test_the_block_of_the_page_runs_and_its_frame_gives_the_numbers_of_another_page(trained):
    """docs/demand.md: 115 tokens or more, 135 and 129 at windows of 128, 192 and 256, three seeds each."""
    (block,) = re.findall(r"^```python\n(.*?)\n^```$", (ROOT / "docs/api.md").read_text(), re.M | re.S)
    first = lab.open_run(trained).probes().consumed_tokens.min()
    windows = ROOT / "experiments/miniature/records/windows.jsonl.xz"
    for large, small in {"runs/cpu_demo": trained, "1_000_790": first, "96": 20, "runs/*": windows}.items():
        assert large in block
        block = block.replace(large, str(small))
    *lines, last = block.splitlines()
    names = {"lab": lab}
    exec("\n".join(lines), names)
    assert names["run"].path == trained
    found = eval(last, names)
    assert found["reach"].round().astype(int).values.tolist() == [[115, 3], [135, 3], [129, 3]]
    assert found["censored"]["count"].to_dict() == {128: 3, 192: 0, 256: 0}


def test_a_frame_has_the_settings_in_which_runs_differ(trained, tmp_path):
    text = (trained / "config.yaml").read_text()
    for name, window in (("a", 96), ("b", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(re.sub(r"\bwindow: 96", f"window: {window}", text))
        (tmp_path / name / "probes.jsonl").write_bytes((trained / "probes.jsonl").read_bytes())
    (tmp_path / "not_a_run").mkdir()
    found = lab.frame(f"{tmp_path}/*")
    assert list(found.columns) == ["run", "seed", "probe", "data.window", *PROBES]
    assert set(found.seed) == {load().run.seed}
    last = lab.frame(f"{tmp_path}/*", last=True)
    assert (last.run.tolist(), set(last.consumed_tokens)) == (["a", "b"], {found.consumed_tokens.max()})
    once = lab.open_run(trained).probes().consumed_tokens.tolist()
    assert found.run.tolist() == ["a"] * len(once) + ["b"] * len(once)
    assert found["data.window"].tolist() == [96] * len(once) + [64] * len(once)
    assert found.consumed_tokens.tolist() == once * 2
    assert lab.frame([tmp_path / "b", tmp_path / "a"]).equals(found)
    assert list(lab.frame(trained).columns) == ["run", "seed", "probe", *PROBES]


def test_a_run_that_has_not_begun_is_empty_and_others_are_refused(trained, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("{}")
    run = lab.open_run(tmp_path / "new")
    assert (len(run.metrics()), list(run.probes().columns), len(run.lengths())) == (0, list(PROBES), 0)
    checkpoint = next((trained / "checkpoints").glob("tokens-*"))
    for path, line in ((tmp_path, "is no run folder"), (checkpoint, "is no run folder"), ("nowhere", "no such folder")):
        with refused(f"{path}: {line}{{}}"):
            lab.open_run(path)
    with refused(f"{tmp_path}/x*: no run folder there{{}}"):
        lab.frame(f"{tmp_path}/x*")
    with refused("runs=[]: no run folder there{}"):
        lab.frame([])


def test_the_lab_itself_is_light_and_lists_what_it_loads_on_first_use():
    code = "import sys, lab; print([n for n in ('torch', 'numpy', 'pandas', 'yaml') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=LIMIT_S) == "[]\n"
    assert dir(lab) == ["PositionCounts", "frame", "load_plugin", "open_run", "watch"]
    with pytest.raises(AttributeError, match="has no attribute 'opne_run'"):
        lab.opne_run  # noqa: B018
    assert lab.open_run.__doc__
