"""Two nodes that do not fit together: every rank ends with status 2 and one line, before anything is trained."""

import json
import platform
import re
import shutil

import pytest

from lab.core.locks import locked
from tests.fits import UNPROBED, command, fit, records
from tests.forked import ROOT
from tests.launching import ended, patched, workers
from tests.refusals import check_faults

SMALL = (*UNPROBED, "--train.tokens=2048", "--optim.warmup_steps=1")
TWO = (*SMALL, "--train.devices=1", "--train.nodes=2", "--train.strategy=ddp")
SOON = """
from datetime import timedelta
from pathlib import Path
from lab.train import agreement, run
agreement.SHARED_S, agreement.NETWORK, agreement.TIMEOUT = 0.5, timedelta(seconds=5), timedelta(seconds=60)
"""
OTHER_TORCH = "own = agreement.versions()\nagreement.versions = lambda: own | {'torch': '2.0.1'}"
OTHER_KERNEL = "from lab.model.attention import backends\nbackends.choose_backend = lambda *_: ('reference', 'planted')"
OTHER_FLASH = "from lab.train import starting\nstarting.current_flash_attention_impl = lambda: 'FA3'"
COMPILES = "from lab.model import devices\ndevices.choose_compile = lambda *_: (True, 'planted')"
PLANTED = "def failing(start):\n    raise MemoryError('planted')\nrun.assemble = failing"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with shards and a clone of the code in which a file differs; another folder, with other shards."""
    place = tmp_path_factory.mktemp("nodes") / "place"
    fit(place, "prepares", *SMALL)
    shutil.copytree(ROOT / "lab", place / "clone" / "lab")
    with (place / "clone" / "lab" / "masks.py").open("a") as file:
        file.write("# older\n")
    package = place / "clone" / "flash_attn_3-3.0.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: flash_attn_3\nVersion: 3.0.0\n")
    other = place.with_name("other")
    shutil.copytree(place / "shards", other / "shards")
    (manifest,) = other.glob("shards/*/task-*/manifest.json")
    record = json.loads(manifest.read_text())
    next(iter(record["files"].values()))["sha256"] = "0" * 64
    manifest.write_text(json.dumps(record))
    (other / "runs").symlink_to(place / "runs")
    place.with_name("apart").mkdir()
    (place.with_name("apart") / "shards").symlink_to(place / "shards")
    place.with_name("linked").symlink_to(place)
    return place


def on_two_nodes(place, name, *options, both=(), second="place", code="", **variables):
    """Run a rank on each of two nodes, the second in another folder, with further options, code and variables."""
    as_nodes = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    one, two = (worker | as_nodes for worker in workers(2))
    words = patched(command(place, name, *TWO, *both), SOON)
    others = patched(command(place.with_name(second), name, *TWO, *both, *options), SOON + code)
    statuses, outputs = ended(place.parent, [(words, one), (others, two | variables)])
    return statuses, [re.sub(r"(?m)^\[.*\n", "", output) for output in outputs]  # without gloo's own lines


HERE = f"rank 1 on {platform.node()}"
CASES = {
    "settings": ({}, ("--optim.lr=1e-2", "--run.seed=7"), f"run.seed=7: {HERE} "),
    "options": ({}, ("--resume",), f"--resume=True: {HERE} "),
    "dry_run": ({}, ("--dry_run",), f"--dry_run=True: {HERE} "),
    "print_config": ({}, ("--print_config",), f"--print_config=True: {HERE} "),
    "code": ({"code": "agreement.ROOT = Path('CLONE')"}, (), f"lab/masks.py=SHA-256 {{}}: {HERE} "),
    "package": ({"code": OTHER_TORCH}, (), f"torch=2.0.1: {HERE} "),
    "installed": ({"code": "import sys\nsys.path.append('CLONE')"}, (), f"flash-attn-3=3.0.0: {HERE} "),
    "kernel": ({"code": OTHER_KERNEL}, (), f"train.backend=reference (planted): {HERE} {{}}has, sdpa ({{}}); "),
    "flash": ({"code": OTHER_FLASH}, (), f"flash attention=FA3 ({{}}): {HERE} {{}}has, torch's own ({{}}); "),
    "compiler": ({"code": COMPILES}, (), f"train.compile=yes (planted): {HERE} {{}}has, no (on a CPU {{}}); "),
    "shards": ({"second": "other"}, (), f"data.folder/{{}}/task-00000=SHA-256 {{}}: {HERE} "),
    "folder": ({"second": "apart"}, (), f"run.folder={{}}: {{}} of {HERE} "),
    "network": ({"GLOO_SOCKET_IFNAME": "none9"}, (), f"GLOO_SOCKET_IFNAME=none9: {HERE} "),
    "unknown": ({}, ("--optim.lrr=1",), "optim.lrr=1: "),
    "absent": ({}, ("--probe.haystack=absent.txt",), "probe.haystack=absent.txt: "),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_that_differ_end_in_one_line(place, case):
    differs, options, rule = CASES[case]
    code = differs.get("code", "").replace("CLONE", str(place / "clone"))
    statuses, outputs = on_two_nodes(place, case, *options, **{**differs, "code": code})
    assert statuses == [2, 2], outputs
    # The first rank of a node that has an error prints it, after its name if it is not the only one.
    lines = [re.sub(rf"^rank [01] on {platform.node()}: ", "", output).splitlines() for output in outputs]
    check_faults(lines[0], [rule])
    check_faults(lines[1], [rule])
    assert not list(place.glob(f"runs/{case}/*")), "nothing was written"


def test_a_rank_that_fails_alone_leaves_no_other_waiting(place):
    statuses, outputs = on_two_nodes(place, "planted", code=PLANTED)
    assert statuses == [2, 1]
    assert outputs[0] == f"{HERE}: MemoryError (planted)\n"
    assert "Traceback" in outputs[1]
    with locked(place / "runs" / "used" / ".lock"):
        statuses, outputs = on_two_nodes(place, "used")
    assert statuses == [2, 2]
    assert [output.count(" is in use by ") for output in outputs] == [1, 1]
    assert not list((place / "runs" / "used").iterdir()), "nothing was written"


def test_nodes_may_differ_in_threads_and_paths(place):
    assert on_two_nodes(place, "alike", "--train.threads=2", second="linked")[0] == [0, 0]
    assert len(records(place / "runs" / "alike")) == 2


def test_nodes_that_print_end_together(place):
    statuses, outputs = on_two_nodes(place, "printed", both=["--dry_run"])
    assert statuses == [0, 0], outputs
    assert not (place / "runs" / "printed").exists()


def test_nodes_that_resume_with_different_haystacks_end_in_one_line(place):
    long, other = place / "long.txt", place / "other.txt"
    long.write_text("A text that is larger than what a run folder keeps. " * 20_000)
    other.write_text("Another text. " * 20_000)
    both = (f"--probe.haystack={long}", "--train.checkpoint_every_tokens=512", "--resume")
    assert on_two_nodes(place, "long", both=both)[0] == [0, 0]
    shutil.rmtree(sorted(place.glob("runs/long/checkpoints/tokens-*"))[-1])
    code = f"""
from lab.data.text_files import read_texts
from lab.probe import needles
from lab.train import starting
for part in (needles, starting):
    part.read_texts = lambda path, field: read_texts(Path({str(other)!r}), field)
"""  # another file of the same name on the second node
    statuses, outputs = on_two_nodes(place, "long", both=both, code=code)
    assert statuses == [2, 2], outputs
    assert "probe.haystack=text of SHA-256 " in outputs[0]
