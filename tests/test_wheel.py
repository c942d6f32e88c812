"""The wheel, built and installed without network in an environment of its own, trains from a config that it brings.

The packages that it needs are those of this environment, named by a .pth file behind the wheel's own.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.forked import LIMIT_S, ROOT

PLACES = {"lab": "lab", "eval": "eval", "configs": "lab/configs"}  # in the repository, and in the wheel
SUFFIXES = {".py", ".yaml", ".html", ".typed"}
PIP = (sys.executable, "-m", "pip")
OFFLINE = ("--quiet", "--no-deps", "--no-index")


def run(*words, cwd):
    """Run a program with no network needed; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = {"env": clean | {"OMP_NUM_THREADS": "1"}, "timeout": LIMIT_S}
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_installed_wheel_trains_from_a_config_that_it_brings(tmp_path):
    source, bare, work = (tmp_path / name for name in ("source", "bare", "work"))
    work.mkdir()
    for name in PLACES:  # copied, so that the build leaves nothing in the repository
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "-w", tmp_path, ".", cwd=source)
    [wheel] = tmp_path.glob("probe_lab-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for name, place in PLACES.items():
        files = [path.relative_to(source / name) for path in (source / name).rglob("*.*") if path.suffix in SUFFIXES]
        assert {f"{place}/{path.as_posix()}" for path in files} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    run(sys.executable, "-m", "venv", "--without-pip", bare, cwd=tmp_path)
    run(*PIP, "--python", bare / "bin" / "python", "install", *OFFLINE, wheel, cwd=tmp_path)
    [site] = bare.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    place = run(bare / "bin" / "python", "-c", "import lab; print(lab.__file__)", cwd=work)
    assert Path(place.strip()).is_relative_to(bare)
    lab = bare / "bin" / "probe-lab"
    assert "name: cpu_demo" in run(lab, "fit", "cpu_demo", "--print_config", cwd=work)
    run(lab, "frequency", "--positions=1024", cwd=work)
    run(lab, "fit", "cpu_test", cwd=work)
    assert (work / "runs" / "cpu_test" / "metrics.jsonl").exists()
