"""CUDA graphs on a CPU: operations are recorded, and a replay runs them on the memory that they were given."""

import contextlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}
FROM_HOST = {torch.ops.aten.lift_fresh.default}


class CUDAGraph:
    def __init__(self):
        self.calls = []

    def replay(self):
        """Write each result where the capture put it, or let it write in place."""
        for func, args, kwargs, out in self.calls:
            result = func(*args, **kwargs)
            if not changes(func) and result is not out:
                for place, value in zip(tensors(out), tensors(result), strict=True):
                    if place.data_ptr() != value.data_ptr():
                        place.copy_(value)


class Recording(TorchDispatchMode):
    """Record what a capture launches; what it computes is undefined until a replay."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITS | FROM_HOST:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        if changes(func):
            place = kwargs["out"] if "out" in kwargs else args[0]
            self.graph.calls.append((func, args, kwargs, place))
            return place
        out = func(*args, **kwargs)
        self.graph.calls.append((func, args, kwargs, out))
        for x in tensors(out):
            if not is_view(func) and x.is_floating_point():
                x.fill_(torch.nan)
        return out


def changes(func):
    return func._schema.is_mutable


def is_view(func):
    return any(arg.alias_info is not None for arg in func._schema.arguments)


def tensors(out):
    return [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, torch.Tensor)]


@contextlib.contextmanager
def graphs_on_cpu():
    """Yield the list of the graphs that are captured."""
    made = []

    @contextlib.contextmanager
    def capture(graph, *, capture_error_mode):
        made.append(graph)
        with Recording(graph):
            yield

    stream = mock.MagicMock(name="stream")
    places = {"CUDAGraph": CUDAGraph, "graph": capture, "Stream": stream, "current_stream": stream}
    places["stream"] = lambda _: contextlib.nullcontext()
    with mock.patch.multiple(torch.cuda, **places):
        yield made
