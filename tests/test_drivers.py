import pytest
import torch

from lab.core.errors import ConfigError
from lab.model import devices


def test_a_run_without_a_gpu_names_torchs_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rule = f"train.accelerator=gpu: no CUDA device; torch .* is built for CUDA {torch.version.cuda}, and CUDA 13 needs"
    with pytest.raises(ConfigError, match=rule):
        devices.device_for("gpu", "train.accelerator")
