"""The wheel, built and installed without network, trains from a config that it brings, in a folder of its own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 240
NOT_CODE = {".yaml", ".html", ".typed"}


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


def files_of_the_packages():
    """List the tracked files that the wheel must hold, by their names in it."""
    tracked = subprocess.run(
        ["git", "ls-files", "lab", "eval", "configs"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    names = [Path(name) for name in tracked.stdout.split() if Path(name).suffix in {".py", *NOT_CODE}]
    return {(Path("lab") / name if name.parts[0] == "configs" else name).as_posix() for name in names}


@pytest.mark.slow
def test_the_installed_wheel_trains_from_a_config_that_it_brings(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True, timeout=60)
    run(
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ".",
        cwd=source,
    )
    [wheel] = tmp_path.glob("probe_lab-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert files_of_the_packages() <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    installed, work = tmp_path / "installed", tmp_path / "work"
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed, wheel, cwd=tmp_path)
    work.mkdir()
    place = run("-c", "import lab; print(lab.__file__)", cwd=work, PYTHONPATH=str(installed))
    assert Path(place.strip()).is_relative_to(installed)
    printed = run("-m", "lab.cli", "fit", "cpu_demo", "--print_config", cwd=work, PYTHONPATH=str(installed))
    assert "name: cpu_demo" in printed
    run("-m", "lab.cli", "fit", "cpu_test", cwd=work, PYTHONPATH=str(installed))
    assert (work / "runs" / "cpu_test" / "metrics.jsonl").exists()
