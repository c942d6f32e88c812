"""Packages that are there but broken: noticed when a backend is chosen, not in the first step."""

import re
import sys

import pytest
import torch

from lab.errors import ConfigError
from lab.model.attention import backends, flash3

CUDA, HALF = torch.device("cuda"), torch.bfloat16
FAULTS = {
    "missing_library": (
        'raise ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")',
        r"ImportError: libcudart\.so\.12: cannot open",
    ),
    "undefined_symbol": (
        'raise ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E\\nsecond line")',
        "undefined symbol: _ZN3c105ErrorC2E second line",
    ),
}


def forget():
    for name in [n for n in sys.modules if n.partition(".")[0] in ("flash_attn", "flash_attn_interface", "xformers")]:
        del sys.modules[name]
    for looked_up in (backends.installed, backends.import_fault, flash3.activate):
        looked_up.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write packages that Python finds, and forget them afterwards."""

    def write(name, text):
        folder = tmp_path.joinpath(*name.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield write
    forget()


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_broken_package_is_left_out_by_auto_which_says_why(package, text, fault):
    package("flash_attn", text)
    name, reason = backends.choose("auto", CUDA, HALF)
    assert name == "varlen"
    assert "\n" not in reason
    assert re.search(fault, reason)


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("backend", "module"), [("flash", "flash_attn"), ("xformers", "xformers.ops")])
def test_a_broken_package_that_is_asked_for_is_refused_in_one_line(package, backend, module, text, fault):
    package(module.partition(".")[0], "")
    package(module, text)
    with pytest.raises(ConfigError, match=fault) as caught:
        backends.choose(backend, CUDA, HALF)
    line = str(caught.value)
    assert line.startswith(f"train.backend={backend}: {module.partition('.')[0]} is installed but cannot be imported (")
    assert "use auto" in line
    assert "\n" not in line


def test_a_sound_package_is_taken_and_imported_once(package, tmp_path):
    imports = tmp_path / "imports"
    package("flash_attn", f"open({str(imports)!r}, 'a').write('once ')")
    for _ in range(3):
        assert backends.choose("auto", CUDA, HALF) == ("flash", "flash-attn is installed")
        assert backends.choose("flash", CUDA, HALF) == ("flash", "set in the config")
    assert imports.read_text() == "once "


def test_nothing_is_imported_for_a_cpu_or_for_single_precision(package):
    package("flash_attn", "raise ImportError('imported')")
    assert backends.choose("auto", torch.device("cpu"), HALF)[0] == "sdpa"
    assert backends.choose("auto", CUDA, torch.float32)[0] == "sdpa"
    assert "flash_attn" not in sys.modules


@pytest.fixture
def hopper(package, monkeypatch):
    """Emulate a GPU with FlashAttention 3, whose activation is noted."""
    activated = []
    package("flash_attn_interface", "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activated.append)
    monkeypatch.setattr(flash3, "trial", activated.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    return activated


def test_flash_attention_3_is_activated_once_and_tried_on_the_ranks_own_gpu(hopper):
    for _ in range(3):
        name, reason = backends.choose("auto", CUDA, HALF)
        assert (name, "FlashAttention 3" in reason) == ("varlen", True)
    assert hopper == ["FA3", torch.device("cuda", 3)]


@pytest.mark.parametrize("flash_attn", [False, True], ids=["without_flash_attn", "with_flash_attn"])
@pytest.mark.parametrize("fault", ["capability", "torch", "package", "trial"])
def test_flash_attention_3_is_left_out_with_the_reason(hopper, package, monkeypatch, fault, flash_attn):
    def fail(*_):
        raise TypeError("fwd() takes 30 arguments\nsecond line")

    if flash_attn:
        package("flash_attn", "")
    if fault == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    elif fault == "torch":
        monkeypatch.delattr(torch.nn.attention, "restore_flash_attention_impl")
    elif fault == "package":
        monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", fail)
    else:
        monkeypatch.setattr(flash3, "trial", fail)
    name, reason = backends.choose("auto", CUDA, HALF)
    assert name == ("flash" if flash_attn else "varlen")
    assert re.search(r"FlashAttention 3 is left out: .*(9\.0.*8\.0|torch 2|takes 30 arguments second line)", reason)
