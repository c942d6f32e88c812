"""What `pytest -m gpu` collects: the tests of models alone, as others import packages that a GPU image lacks."""

import re
from pathlib import Path

import pytest

from benchmarks.installed import list_missing

GPU_TESTS = Path(__file__).parent / "tests" / "model"
NEEDS_GPU = re.compile(r"mark\.gpu|def test_\w+\([^)]*\bdevice\b")
NEEDED = ("numpy", "pydantic", "annotated-types", "ruamel.yaml")  # besides torch, what the tests of models import


def pytest_configure(config):  # noqa: ANN001, ANN201
    """End with one line if what every test on a GPU imports is missing."""
    missing = [name for name in list_missing() if name.startswith(NEEDED)] if config.option.markexpr == "gpu" else []
    if missing:
        pytest.exit(f"missing: {', '.join(missing)}; python -m benchmarks.on_gpu says how to install them", 2)


def pytest_ignore_collect(collection_path, config):  # noqa: ANN001, ANN201
    """Ignore folders and files in which no test needs a GPU."""
    if config.option.markexpr != "gpu" or collection_path in (GPU_TESTS, *GPU_TESTS.parents):
        return None
    if collection_path.parent != GPU_TESTS or collection_path.is_dir():
        return True
    text = collection_path.read_text(encoding="utf-8")
    has_parameter = 'parametrize(("words", "device"' in text  # of this name, and no fixture
    return None if NEEDS_GPU.search(text) and not has_parameter else True
