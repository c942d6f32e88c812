"""Which packages of the lab are missing, told before anything that needs them is imported."""

import sys
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
        install = f"pip install --no-index --find-links=WHEELS {names}"
        fetch = f"pip download --only-binary=:all: --dest=WHEELS {names}"
        lines = f"{command}: {len(missing)} packages are missing; run {install}, with the folder of {fetch} elsewhere"
        print(lines, file=sys.stderr)
        raise SystemExit(2)
