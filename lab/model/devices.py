"""Find a device, describe it and its peak, and multiply on it as fast as it can.

torch multiplies float32 on a CPU with MKL. On processors with AVX-512 by other vendors than Intel, MKL uses half the
vector width. There oneDNN computes a layer's output and the gradient of its input. MKL still computes the gradient of
its weight, for which oneDNN would have to transpose both matrices. GFLOP/s of one thread, 4,096 tokens, 256 to 704
features:

    processor, oneDNN / MKL      output     input's gradient   weight's gradient
    AMD EPYC without AVX-512     81 / 81    74 / 81            63 / 88
    AMD EPYC, Zen 4              98 / 89    not measured       not measured
    AMD EPYC with AVX-512        240 / 105  not measured       not measured

The choice follows from the processor alone, so that a resumed run makes the same one.
"""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.core.errors import ConfigError
from lab.core.startup import SIGNALS

# dense bf16 tensor operations per second, from the vendors' data sheets
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
}


def device_for(name: str, field: str = "--device") -> torch.device:
    """Find the device to compute on: cpu, gpu, or auto, a GPU if there is one.

    Raises: ConfigError for a GPU that is not there.
    """
    available = torch.cuda.is_available()
    if name == "gpu" and not available:
        # The index has torch for drivers from 525 on.
        raise ConfigError(
            f"{field}=gpu: no CUDA device; torch {torch.__version__} is built for CUDA {torch.version.cuda}, and CUDA "
            "13 needs a driver from 580 on, older ones torch by --index-url https://download.pytorch.org/whl/cu126, or "
            "use cpu or auto"
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def hardware() -> dict[str, str | int | list[str] | None]:
    """Name the processor and the GPUs."""
    return {
        "cpu": processor(torch.device("cpu")),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def processor(device: torch.device) -> str:
    """Name the processor or the GPU that a device computes on; "unknown" if the system has no name for it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = re.search(r"(?m)^model name\s*:(.*)", cpuinfo())
    return name[1].strip() if name else platform.processor() or "unknown"


def cpuinfo() -> str:
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8") if file.exists() else ""  # no file on macOS


def device_type(device: torch.device) -> str:
    """Return the type of a device, such as cpu. Kernels are chosen by it alone, so that tests can emulate a GPU."""
    return device.type


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for what is queued there."""
    if device.type == "cuda":  # a copy from other memory waits, whatever `non_blocking` says
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


@cache
def compiles(device: str = "cuda") -> bool:
    """Return whether the compiler that torch.compile calls builds a library that loads; for a GPU, Triton calls it.

    Source: triton/runtime/build.py, _build; torch/_inductor/config.py, cpp.cxx.
    """
    compiler, options = os.environ.get("CXX", "g++"), ["-fopenmp", "-x", "c++"]
    if device == "cuda":
        compiler, options = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "", ["-x", "c"]
        if importlib.util.find_spec("triton") is None:
            return False
    with TemporaryDirectory() as folder:
        library = f"{folder}/trial.so"
        command = [compiler, "-o", library, *options, "-", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
        try:
            subprocess.run(command, input="#include <Python.h>\n", text=True, capture_output=True, check=True)
            ctypes.CDLL(library)
        except (OSError, subprocess.CalledProcessError):  # no compiler, a header is missing, a folder without execution
            return False
    return True


def choose_compile(wanted: bool | str, device: torch.device) -> tuple[bool, str]:
    """Choose whether blocks are compiled if train.compile is `wanted`; return that and the reason.

    Raises: ConfigError.
    """
    if wanted is False:
        return False, "set in the config"
    if wanted == "auto" and device.type != "cuda":
        return False, "on a CPU with train.compile=true only, as it takes some seconds"
    if compiles(device.type):
        return True, "two graphs, before and after attention, for all blocks and packs"
    needs = "Triton and a C compiler" if device.type == "cuda" else "g++"
    reason = f"torch.compile needs {needs} that builds with Python.h; install gcc, g++ and Python's headers"
    if wanted is True:
        raise ConfigError(f"train.compile=true: {reason}, or use auto or false")
    return False, reason


def inductor(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
    """Compile a graph by torch's inductor, in processes that outlive the signals which stop a run.

    SLURM signals every process of a step. A run ends with its compiler, and inductor waits for a dead worker for ever.
    """
    # Processes and threads that start in the body inherit the mask. Other threads of this process still take signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return torch._dynamo.lookup_backend("inductor")(graph, inputs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that a product with x computes in, under autocast or without."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


@cache
def onednn() -> Any:
    """Return torch's linear operator on oneDNN, which torch.compile uses; None if it is missing or not faster."""
    is_there = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    if is_there and cpuinfo() and "GenuineIntel" not in cpuinfo():
        return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None


def takes_onednn(x: Tensor) -> bool:
    return x.device.type == "cpu" and compute_dtype(x) == torch.float32 and onednn() is not None


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = onednn().default(x, weight, bias, "none", [], "")
    return out


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Compute a b for matrices of one dtype, without a gradient; for oneDNN a must not be transposed."""
    return by_onednn(a, b.T) if takes_onednn(a) and a.is_contiguous() else a @ b


class OneDnnLinear(torch.autograd.Function):
    """A linear layer in float32, the gradient of W by MKL."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Multiply the gradient with the weight, as a layer whose weight is transposed, and with the input."""
        x, weight = ctx.saved_tensors
        x_grad = weight_grad = bias_grad = None
        rows = grad.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            x_grad = by_onednn(grad, weight.T)
        if ctx.needs_input_grad[1]:
            weight_grad = rows.T @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            bias_grad = rows.sum(0)
        return x_grad, weight_grad, bias_grad


class Linear(nn.Linear):
    """x W^T + b; large products of float32 on a CPU use the faster library."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to every token."""
        # With fewer multiplications the overhead of oneDNN exceeds what it saves, measured.
        is_large = input.numel() * self.weight.shape[0] >= 1 << 20
        # Graphs, and tensors of FSDP and of the memory tracker, need operators that torch knows how to trace.
        is_eager = not torch.compiler.is_compiling() and {type(input), type(self.weight)} <= {Tensor, nn.Parameter}
        if is_large and is_eager and takes_onednn(input):
            return OneDnnLinear.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return F.linear(input, self.weight, self.bias)


def peak_flops(device_name: str | None) -> float | None:
    """Look up a device's peak, None for a CPU or a GPU that is not in the table."""
    words = (device_name or "").replace("-", " ").split()
    return next((peak for name, peak in PEAK_FLOPS.items() if set(name.split()) <= set(words)), None)


def utilisation(flops_per_token: float, tokens_per_s: float, peak: float | None, n_devices: int) -> float | None:
    return flops_per_token * tokens_per_s / (peak * n_devices) if peak else None
