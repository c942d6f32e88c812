"""Which packages of the lab are missing, told before anything that needs them is imported."""

import platform
import re
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
NAME_ENDS = "[<>=!~; "


def list_missing() -> list[str]:
    """List the lab's requirements that are not installed, as pip reads them."""
    missing = []
    for requirement in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]:
        name = requirement
        for end in NAME_ENDS:
            name = name.partition(end)[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(requirement)
    return missing


def require(command: str) -> None:
    """End the command with one line if packages are missing."""
    missing = list_missing()
    if missing:
        names = " ".join(f"'{requirement}'" for requirement in missing)
        install = f"{sys.executable} -m pip install --no-index --find-links=WHEELS {names}"
        target = f"--python-version={platform.python_version()} {' '.join(f'--platform={tag}' for tag in platforms())}"
        fetch = f"pip download --only-binary=:all: {target} --dest=WHEELS {names}"
        lines = f"{command}: {len(missing)} packages are missing; run {install}, with the folder of {fetch} elsewhere"
        print(lines, file=sys.stderr)
        raise SystemExit(2)


def platforms() -> list[str]:
    """List the platform tags of the wheels that this machine takes, which pip elsewhere cannot know.

    On Linux a tag names the oldest C library that a wheel runs on. pip derives only tags before manylinux2014.
    """
    name, version = platform.libc_ver()
    if name != "glibc":
        return [re.sub(r"\W", "_", sysconfig.get_platform())]
    minors = range(int(version.split(".")[1]), 16, -1)
    tags = [f"manylinux_2_{minor}" for minor in minors] + ["manylinux2014"]
    return [f"{tag}_{platform.machine()}" for tag in tags]
