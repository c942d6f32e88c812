"""What a run that finds no GPU says of torch's CUDA and the driver's."""

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model import devices

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Feb  8 05:53:42 UTC 2026\nGCC version: 12.3.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
CASES = {
    "too_old": (CLOSED.format("550.54.15"), "13.0", "for CUDA 13.0", "550.54.15; update the driver to 580 or newer, "),
    "new_enough": (OPEN.format("580.65.06"), "13.0", "for CUDA 13.0", "580.65.06; see "),
    "older_cuda": (CLOSED.format("550.54.15"), "12.6", "for CUDA 12.6", "550.54.15; see "),
    "no_driver": (None, "13.0", "for CUDA 13.0", "not loaded; see "),
    "no_cuda": (OPEN.format("580.65.06"), None, "without CUDA", "580.65.06; install torch by --index-url "),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_without_a_gpu_names_torchs_cuda_and_the_driver(name, tmp_path, monkeypatch):
    text, cuda, built, driver = CASES[name]
    if text:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = (
        f"train.accelerator=gpu: no CUDA device, torch {torch.__version__} is built {built} and the driver is {driver}"
    )
    with pytest.raises(ConfigError) as caught:
        devices.device_for("gpu", "train.accelerator")
    assert str(caught.value).startswith(line)
    assert ("whl/cu126" in str(caught.value)) == (name in ("too_old", "no_cuda"))
