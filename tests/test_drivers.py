import pytest
import torch

from lab.core.errors import ConfigError
from lab.model import devices

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Feb  8 05:53:42 UTC 2026\nGCC version: 12.3.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
CASES = {"550.54.15": CLOSED, "580.65.06": OPEN, "not loaded": None}


@pytest.mark.parametrize(("driver", "text"), CASES.items(), ids=CASES)
def test_a_run_without_a_gpu_names_torchs_cuda_and_the_driver(driver, text, tmp_path, monkeypatch):
    if text:
        (tmp_path / "version").write_text(text.format(driver))
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and the driver is {driver}; "
    with pytest.raises(ConfigError) as caught:
        devices.device_for("gpu", "train.accelerator")
    assert str(caught.value).startswith(f"train.accelerator=gpu: no CUDA device, {built}")
