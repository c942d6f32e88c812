import importlib.util
import shutil
import sys
import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.model import devices
from lab.model.attention import backends
from lab.model.loss import chunk_terms
from tests.model import stand_ins


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """A small untied Llama folder, to be left as it is."""
    from tests.model.folders import theirs

    folder = tmp_path_factory.mktemp("llama") / "model"
    theirs().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(llama_folder, tmp_path):
    """A copy of it to change or to break."""
    return shutil.copytree(llama_folder, tmp_path / "model")


@pytest.fixture
def text():
    return torch.randint(1, 97, (2, 45), generator=torch.Generator().manual_seed(0))


class Watch(TorchDispatchMode):
    """Call note(operator, arguments, result) after every operator that runs."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        self.note(function, arguments, out)
        return out


def put_module(monkeypatch, name, **contents):
    """Put a package where imports find it."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.util.spec_from_loader(name, None)
    made.__path__ = []
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)


def forget_packages():
    for looked_up in (backends.import_error, backends.activate_flash):
        looked_up.cache_clear()


@pytest.fixture
def stood_in(monkeypatch):
    """Let the CPU answer for a GPU on which every package is installed."""
    monkeypatch.setattr(devices, "device_type", lambda device: "cuda")
    put_module(monkeypatch, "flash_attn", flash_attn_varlen_func=stand_ins.flash_attn_varlen_func)
    for name in ("xformers", "xformers.ops", "xformers.ops.fmha"):
        put_module(monkeypatch, name, memory_efficient_attention=stand_ins.memory_efficient_attention)
    bias = stand_ins.BlockDiagonalCausalFromBottomRightMask
    put_module(monkeypatch, "xformers.ops.fmha.attn_bias", BlockDiagonalCausalFromBottomRightMask=bias)
    monkeypatch.setattr("lab.model.loss.compiled_terms", lambda: chunk_terms)
    forget_packages()
    with stand_ins.on_cpu():
        yield "cpu"
    forget_packages()


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(params=[pytest.param("cuda", marks=GPU), "stand_in"])
def device(request):
    """A GPU where there is one, and the CPU with stand-ins for its kernels everywhere."""
    return torch.device("cuda" if request.param == "cuda" else request.getfixturevalue("stood_in"))
