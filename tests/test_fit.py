import json
import subprocess

import numpy as np
import pytest
import torch

from lab.runs.folder import RunFolder
from lab.train.run import format_report
from tests.eval.commands import lines_of
from tests.fits import ROOT, UNPROBED, command, exact_metrics, fit, probed, records
from tests.forked import LIMIT_S, python
from tests.launching import patched

LOSS_TOLERANCE = 2e-3  # float32 on another processor: other kernels, other rounding, 20 steps of it


@pytest.fixture(scope="module")
def finished(place):
    """A run in an interpreter of its own, with the bare packages only."""
    extras = ["wandb", "datasets", "pyarrow", "pandas", "flash_attn", "xformers"]
    words = patched(command(place, "finished"), f"for name in {extras!r}: sys.modules[name] = None")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return place / "runs" / "finished"


def test_the_last_table_has_reach_with_its_limits_first(tmp_path):
    ends = {"first_distance": 24, "last_distance": 179, "best_distance": None}
    found = [  # reach, its limits, the best distance where it is not determined; then what the table shows
        ((131.24, 120.0, 140.5, None), "131 120.0 to 140.5"),
        ((179.0, 168.0, None, None), "179+ 168.0 to the end"),
        ((None, None, 24, None), "<24 <24 to 24.0"),
        ((None, 96.0, None, 168), "not determined 96.0 to the end"),
    ]
    probes = []
    for consumed, (values, _) in enumerate(found, start=1):
        reach = dict(zip(("reach", "reach_low", "reach_high", "best_distance"), values, strict=True))
        losses = {"held_out_loss": 2.5, "bits_per_byte": 1.2}
        probes.append(json.dumps({"consumed_tokens": consumed, "effective_length": 128, **losses, **ends, **reach}))
    probes.append(json.dumps({"consumed_tokens": 5, "effective_length": None}))  # a run that measures no reach
    (tmp_path / "probes.jsonl").write_text("\n".join(probes) + "\n")
    (tmp_path / "metrics.jsonl").write_text('{"loss": 2.0, "consumed_tokens": 5}\n')
    lines = format_report(RunFolder(tmp_path)).splitlines()
    heading, *table = [" ".join(line.split()) for line in lines[1:7]]
    assert heading == "consumed tokens reach 95% limits effective length loss bits/byte"
    expected = [f"{consumed} {shown} 128 2.500 1.200" for consumed, (_, shown) in enumerate(found, start=1)]
    assert table == [*expected, "5 not measured - none"]
    assert max(map(len, lines[:7])) <= 80


def test_run_folder_is_whole(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {"config.yaml", "environment.json", "metrics.jsonl", "probes.jsonl", "counts.npz", "cases"}
    assert names >= {"tokenizer.json", "haystack.txt"}
    metrics = records(finished)
    assert [record["step"] for record in metrics] == list(range(1, 21))
    probes = [record for record in records(finished, "probes.jsonl") if "effective_length" in record]
    assert [probe["consumed_tokens"] // 8192 for probe in probes] == [1, 2, 2]  # two intervals and the end
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["threads"] == 1
    # A wheel of CUDA may name it in torch.__version__ alone.
    assert torch.__version__.startswith(environment["versions"]["torch"])
    tests = [json.loads(line) for line in sorted((finished / "cases").iterdir())[0].read_text().splitlines()]
    assert [len(test["numbers"]) for test in tests] == [4] * 8 + [1] * 8  # two lengths, two distances, four tests each
    assert all(len(test["prompt_hash"]) == 16 for test in tests)
    assert not list(finished.rglob("*.tmp*"))
    assert not list(finished.rglob(".writing"))


def test_losses_are_the_committed_ones(finished):
    golden = np.loadtxt(ROOT / "tests" / "golden" / "cpu_test_losses.txt")
    np.testing.assert_allclose([record["loss"] for record in records(finished)], golden, atol=LOSS_TOLERANCE)


def test_probing_and_packing_in_the_background_change_no_number(place, finished):
    assert exact_metrics(fit(place, "other", *UNPROBED)) == exact_metrics(finished)


def test_probe_afterwards_gives_what_training_gave(place, finished):
    again = place / "again"
    assert python("-m", "eval.probe", finished, "-o", again).returncode == 0
    last = max(record["consumed_tokens"] for record in records(finished))
    differ = ("cell", "model", "seconds", "weights", "commit", "started", "hash")  # names, times, and where a row is
    during = [row for row in probed(finished) if row["consumed_tokens"] == last and "length" in row]
    rows = [row for row in lines_of(again, "probe") if "length" in row]
    assert {row["model"] for row in rows} == {finished.name}
    assert [{name: row[name] for name in row if name not in differ} for row in rows] == during
    tests = [{name: test[name] for name in test if name not in differ} for test in lines_of(again, "probe", tests=True)]
    cases = records(finished, f"cases/tokens-{last:015d}.jsonl")
    assert tests == [case for case in cases if "length" in case]
