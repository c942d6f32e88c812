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

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240
OFFLINE = ("--quiet", "--no-deps", "--no-index")
SUFFIXES = {".py", ".yaml", ".html", ".typed"}


def run(*words, cwd):
    """Run a program with no network needed; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = {"env": clean | {"OMP_NUM_THREADS": "1"}, "timeout": LIMIT_S}
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of_the_packages(source):
    """List the files that the wheel must hold, by their names in it."""
    for part, place in (("lab", "lab"), ("eval", "eval"), ("configs", "lab/configs")):
        for path in (source / part).rglob("*.*"):
            if path.suffix in SUFFIXES:
                yield f"{place}/{path.relative_to(source / part).as_posix()}"


def copy_source(source):
    """Copy what a wheel is built from, so that the build leaves nothing in the repository."""
    source.mkdir()
    for name in ("lab", "eval", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)


def build(tmp_path):
    """Build the wheel from a copy of the source."""
    copy_source(tmp_path / "source")
    words = ("wheel", *OFFLINE, "--no-build-isolation", "-w", tmp_path, ".")
    run(sys.executable, "-m", "pip", *words, cwd=tmp_path / "source")
    [wheel] = tmp_path.glob("probe_lab-*.whl")
    return wheel


def install(wheel, place):
    """Install the wheel in a new environment and return its folder of programs."""
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    run(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", *OFFLINE, wheel, cwd=place.parent)
    [site] = place.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    return place / "bin"


@pytest.mark.slow
def test_the_installed_wheel_trains_from_a_config_that_it_brings(tmp_path):
    wheel, work = build(tmp_path), tmp_path / "work"
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {*files_of_the_packages(tmp_path / "source")} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    programs = install(wheel, tmp_path / "bare")
    work.mkdir()
    place = run(programs / "python", "-c", "import lab; print(lab.__file__)", cwd=work)
    assert Path(place.strip()).is_relative_to(tmp_path / "bare")
    lab = programs / "probe-lab"
    assert "name: cpu_demo" in run(lab, "fit", "cpu_demo", "--print_config", cwd=work)
    run(lab, "frequency", "--positions=1024", cwd=work)
    run(lab, "fit", "cpu_test", cwd=work)
    assert (work / "runs" / "cpu_test" / "metrics.jsonl").exists()
