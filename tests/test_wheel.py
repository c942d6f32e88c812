"""The wheel, built and installed without network, trains from a config that it brings, in a folder of its own."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240
SUFFIXES = {".py", ".yaml", ".html", ".typed"}


def run(*words, cwd, **environment):
    """Run Python with no network needed; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=clean | {"OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
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


@pytest.mark.slow
def test_the_installed_wheel_trains_from_a_config_that_it_brings(tmp_path):
    source, installed, work = tmp_path / "source", tmp_path / "installed", tmp_path / "work"
    copy_source(source)
    offline = ("--quiet", "--no-deps", "--no-index")
    run("-m", "pip", "wheel", *offline, "--no-build-isolation", "-w", tmp_path, ".", cwd=source)
    [wheel] = tmp_path.glob("probe_lab-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {*files_of_the_packages(source)} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    run("-m", "pip", "install", *offline, "--target", installed, wheel, cwd=tmp_path)
    work.mkdir()
    place = run("-c", "import lab; print(lab.__file__)", cwd=work, PYTHONPATH=str(installed))
    assert Path(place.strip()).is_relative_to(installed)
    printed = run("-m", "lab.cli", "fit", "cpu_demo", "--print_config", cwd=work, PYTHONPATH=str(installed))
    assert "name: cpu_demo" in printed
    run("-m", "lab.cli", "fit", "cpu_test", cwd=work, PYTHONPATH=str(installed))
    assert (work / "runs" / "cpu_test" / "metrics.jsonl").exists()
