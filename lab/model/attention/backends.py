"""Choose the kernel that attends: the backend of a run, and the kernel for a layout and the sizes of its tensors.

    reference                        by definition, from the matrix of relative positions
    sdpa, varlen, flash, xformers    one causal call per row or segment, for a method of one band; all but sdpa with
                                     a sliding window
    flash_bands, cpu_bands           the bands in rounds of tiles, merged by log-sum-exp
    dense                            pair by pair, for ids and masks that cannot be cut into tiles, and wider floats

A GPU runs bands in half precision only.
"""

import importlib
import importlib.util
import os
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.nn import attention

from lab import positions
from lab.core.errors import ConfigError, MissingPackage
from lab.model import devices
from lab.model.attention.bands import attend_bands
from lab.model.attention.kernels import CAUSAL_KERNELS, CpuFlash, Flash, SpanKernel
from lab.model.attention.layout import Layout
from lab.model.attention.segments import HOST
from lab.model.config import Sliding
from lab.positions import Distance
from lab.positions.string import String

MASKED_ROWS = 512  # tokens up to which a segment and its anchor run faster under a dense mask than as tiles, measured
HALF_ONLY = ("flash", "varlen")  # these run bands by torch's flash attention, which returns the log-sum-exp
SPANS = ("varlen", "flash", "xformers")  # these run all segments of a row by one call, with sliding windows
PACKAGE_ERRORS = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)  # of another version


def choose_kernel(backend: str, layout: Layout, q: Tensor, v: Tensor) -> tuple[str, torch.dtype]:
    """Choose the kernel for such queries and values, and the dtype of its keys and values; v may lack those in a cache.

    Raises: ConfigError for a backend that is unknown, unavailable or cannot run the layout; MissingPackage.
    """
    name = choose_backend(backend, q.device, v.dtype)[0]
    if name == "reference":
        return name, v.dtype
    has_tiles = layout.starts is not None or is_causal(layout)
    runs = runs_in_one_call(name, layout) or (has_tiles and name in HALF_ONLY)
    if name != "sdpa" and not (runs and runs_heads(name, q.shape[3])):
        if backend != "auto":
            raise ConfigError(
                f"backend={name}: cannot run head_dim={q.shape[3]}, distance={layout.distance.method}, or these ids or "
                "mask; use sdpa or reference"
            )
        name = "sdpa"
    bands = None
    if devices.device_type(v.device) == "cpu":
        bands = "cpu_bands"
    elif v.dtype.itemsize == 2 and runs_heads("flash", v.shape[-1]):
        bands = "flash_bands"
    # The fastest kernel that can run the layout: one call, else tiles, else pair by pair.
    kernel = "dense"
    if runs_in_one_call(name, layout) and (bands is None or name != "sdpa" or not has_faster_tiles(layout, q)):
        kernel = name
    elif bands is not None and has_tiles:
        kernel = bands
    return kernel, attention_dtype(q, v)


def attention_dtype(q: Tensor, v: Tensor) -> torch.dtype:
    """Return the dtype that kernels take: on a CPU float32 even for bfloat16, as exact and, measured, faster."""
    return torch.promote_types(q.dtype, torch.float32) if devices.device_type(v.device) == "cpu" else v.dtype


def rotates_in_graph(backend: str, layout: Layout) -> bool:
    """Return whether one call of a backend attends on a packed row, whose rotation may then be part of a graph."""
    if not runs_in_one_call(backend, layout):
        return False
    # sdpa attends by tiles on a GPU and to long anchored segments, and tiles rotate queries once for each band.
    return backend in SPANS or (
        backend == "sdpa" and devices.device_type(layout.q_pos.device) == "cpu" and not layout.is_anchored
    )


def runs_in_one_call(backend: str, layout: Layout) -> bool:
    """Return whether one causal call per row or segment is enough, with a backend's own windows."""
    return is_causal(layout) and (layout.window is None or backend in SPANS)


def is_causal(layout: Layout) -> bool:
    """Return whether there is one band, and visibility is by order, or by order and a window, alone."""
    return (layout.distance.is_plain or layout.window is not None) and layout.mask is None


def runs_heads(backend: str, width: int) -> bool:
    return backend not in HALF_ONLY or (width % 8 == 0 and width <= 256)  # flash attention's limits


def has_faster_tiles(layout: Layout, q: Tensor) -> bool:
    """Return whether tiles are faster than sdpa on a row: chunks, long anchored segments, on a GPU all segments."""
    segments = layout.segments
    if segments is None:
        return layout.starts is not None and 1 < q.shape[2] < layout.k_pos.shape[-1]
    if devices.device_type(q.device) == "cuda":
        return True
    return segments.anchors is not None and max(segments.lengths, default=0) > MASKED_ROWS


def choose_backend(backend: str, device: torch.device, dtype: torch.dtype) -> tuple[str, str]:
    """Choose the backend for `auto`, or check the one that is set; return its name and the reason.

    Raises: MissingPackage for a package that is not installed, ConfigError for a backend that cannot run here.
    """
    if backend != "auto":
        check(backend, device, dtype)
        return backend, "set in the config"
    if devices.device_type(device) != "cuda":
        return "sdpa", f"the fastest exact one on {device.type}"
    if dtype.itemsize != 2:
        return "sdpa", f"the variable-length kernels take float16 or bfloat16, not {dtype}"
    # flash-attn has the same kernel as torch, FlashAttention 2, and its output is copied to add the padding it drops.
    error = activate_flash(device)
    if error is None:
        return "varlen", "torch's variable-length kernel is FlashAttention 3"
    why = f"; FlashAttention 3 is not used: {error}" if error else ""  # a package that is absent is not reported
    return "varlen", f"torch's variable-length kernel is FlashAttention 2{why}"


def choose_for(backend: str, device: torch.device, head_dim: int, *, bf16: bool) -> tuple[str, str]:
    """Choose the backend of a model as `choose` does, for `auto` one that takes heads of its width."""
    name, reason = choose_backend(backend, device, torch.bfloat16 if bf16 else torch.float32)
    if backend == "auto" and not runs_heads(name, head_dim):
        return "sdpa", f"{name} takes no heads of {head_dim}"
    return name, reason


def check(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise an error, in one line, for a backend that cannot run here."""
    field = f"train.backend={backend}"
    if backend not in (*CAUSAL_KERNELS, "reference"):
        raise ConfigError(
            f"{field}: unknown attention backend; use one of: auto, reference, {', '.join(CAUSAL_KERNELS)}"
        )
    module = {"flash": "flash_attn", "xformers": "xformers.ops"}.get(backend, "torch")
    package = module.partition(".")[0]
    error = import_error(module)
    if error == "":
        raise MissingPackage(package, f"{field} (backend: auto would go without)", "gpu")
    if backend not in ("sdpa", "reference") and devices.device_type(device) != "cuda":
        raise ConfigError(f"{field}: runs on a CUDA device only, not on {device.type}; use sdpa or auto")
    if backend in HALF_ONLY and dtype.itemsize != 2:
        raise ConfigError(f"{field}: takes float16 or bfloat16, not {dtype}; use sdpa, auto or half precision")
    if error:
        raise ConfigError(
            f"{field}: {package} is installed but cannot be imported ({error}); build it for torch {torch.__version__} "
            "or use auto"
        )


@cache  # every layer of every forward pass asks
def import_error(module: str) -> str | None:
    """Import a module, once, and return in one line why that failed; "" if it is not installed, None if it succeeded.

    A package built for another torch, CUDA or Python is installed but fails on import: a library or symbol is missing,
    or its version check fails.
    """
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return ""
    try:
        importlib.import_module(module)
    except PACKAGE_ERRORS as error:
        return join_lines(error)
    return None


def join_lines(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@cache
def activate_flash(device: torch.device) -> str | None:
    """Put FlashAttention 3 in place of torch's own, once; return why not, as `import_error` does.

    On Hopper torchtitan prefers it, too. FlashAttention 4 returns other values than torch 2.13 unpacks.
    """
    reason = import_error("flash_attn_interface")
    if reason is not None:
        return reason
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        return f"it runs on compute capability 9.0, this GPU has {major}.{minor}"
    try:
        attention.activate_flash_attention_impl("FA3")
        check_flash(device)
    except PACKAGE_ERRORS as error:
        if attention.current_flash_attention_impl() == "FA3":
            attention.restore_flash_attention_impl()
        return join_lines(error)
    return None


@torch.inference_mode(mode=False)
@torch.enable_grad()
def check_flash(device: torch.device) -> None:
    """Compare bands with those of the CPU in float32, since torch calls the package by its positional arguments.

    Two texts have grouped heads and random values, once with a window and once cut into tiles of all shapes.

    Raises: RuntimeError for a result that differs by more than half precision explains.
    """
    if device.index is None:
        # The trainer has not set this rank's GPU yet, and a tensor on another GPU would take memory there to the end.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    generator = torch.Generator(HOST).manual_seed(0)
    shapes = (4, 24), (2, 40), (2, 40), (4, 24)  # heads and tokens of q, k, v and the gradient
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    for width, method in product((64, 128), (Sliding(window=8), String(shift=12, window=12))):
        inputs = [torch.randn(2, *shape, width, generator=generator, device=HOST).bfloat16() for shape in shapes]
        results = run_bands(inputs, method, device, torch.bfloat16, Flash())
        exact_results = run_bands(inputs, method, torch.device(HOST), torch.float32, CpuFlash())
        for name, result, exact in zip(names, results, exact_results):
            squares = [x.square().sum((0, 2, 3)) for x in (result.to(exact) - exact, exact)]
            error = (squares[0] / squares[1]).sqrt().max()  # of the worst head
            # Rounding to bfloat16 alone: 0.003. Written so that NaN fails too.
            if not error <= 0.01:
                raise RuntimeError(f"its {name} differs by {error:.2%} from attention in float32")


def run_bands(
    inputs: list[Tensor], method: Distance, device: torch.device, dtype: torch.dtype, kernel: SpanKernel
) -> tuple[Tensor, ...]:
    """Attend over a method's bands; return the output and the gradients of queries, keys and values."""
    q, k, v, grad = (x.to(device, dtype).requires_grad_() for x in inputs)
    # At position 0 nothing is rotated.
    ids = torch.zeros(k.shape[2], device=device)
    rope = positions.frequencies("rope", head_dim=k.shape[3])
    out = attend_bands(q, [k], v, Layout(ids[: q.shape[2]], ids, rope, method, dtype, starts=(0,)), 0, kernel)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), grad)
