"""Write requirements.lock: the versions of constraints.txt with the hashes of every wheel that a promised system takes.

uv resolves for all systems at once. Of its wheels those remain that CPython 3.11 to 3.13 takes on Linux or macOS, which
are a third; `make lock` runs this after a change of versions, with uv on the path.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("data", "hf", "plot", "wandb")
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
PLATFORM = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2)")
HEAD = f"# By make lock: {', '.join(EXTRAS)}, for Python {', '.join(PYTHONS)} on Linux and macOS.\n"


def resolve() -> list[dict]:
    """Resolve the extras on the index, and return the packages."""
    words = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", PYTHONS[0], "--quiet"]
    words += ["--constraint", "constraints.txt", "--format", "pylock.toml", *(f"--extra={name}" for name in EXTRAS)]
    return tomllib.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["packages"]


def is_wanted(marker: str) -> bool:
    """Return whether any promised system needs a package."""
    systems = [
        {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": kind,
            "platform_machine": machine,
        }
        for python in PYTHONS
        for kind, machine in SYSTEMS
    ]
    return not marker or any(Marker(marker).evaluate(system) for system in systems)


def is_taken(wheel: str) -> bool:
    """Return whether any promised system takes a wheel."""
    minors = {python.partition(".")[2] for python in PYTHONS}
    for tag in parse_wheel_filename(wheel)[3]:
        minor = tag.interpreter.removeprefix("cp3")
        stable = tag.abi in ("abi3", "none") and (minor in (*minors, "") or (minor.isdigit() and int(minor) <= 13))
        fits = tag.interpreter.startswith("py") or stable or (minor in minors and tag.abi == tag.interpreter)
        if fits and tag.interpreter != "py2" and PLATFORM.fullmatch(tag.platform):
            return True
    return False


def entry(package: dict) -> str:
    """Write one package."""
    wheels = [
        wheel for wheel in package.get("wheels", ()) if is_taken(wheel["url"].rpartition("/")[2].replace("%2B", "+"))
    ]
    if not wheels:
        sys.exit(f"{package['name']}=={package['version']}: has no wheel for any promised system")
    marker = f" ; {package['marker']}" if "marker" in package else ""
    hashes = sorted(wheel["hashes"]["sha256"] for wheel in wheels)
    return " \\\n".join(
        [f"{package['name']}=={package['version']}{marker}", *(f" --hash=sha256:{one}" for one in hashes)]
    )


wanted = [package for package in resolve() if is_wanted(package.get("marker", ""))]
(ROOT / "requirements.lock").write_text(HEAD + "".join(entry(package) + "\n" for package in wanted))
