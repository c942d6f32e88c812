"""What a run that finds no GPU says of torch's CUDA and the driver's."""

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model import devices

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Feb  8 05:53:42 UTC 2026\nGCC version: 12.3.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
CASES = {
    "closed": (CLOSED.format("550.54.15"), "550.54.15; "),
    "open": (OPEN.format("580.65.06"), "580.65.06; "),
    "none": (None, "not loaded; "),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_without_a_gpu_names_torchs_cuda_and_the_driver(name, tmp_path, monkeypatch):
    text, driver = CASES[name]
    if text:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and the driver is {driver}"
    with pytest.raises(ConfigError) as caught:
        devices.device_for("gpu", "train.accelerator")
    assert str(caught.value).startswith(f"train.accelerator=gpu: no CUDA device, {built}")
