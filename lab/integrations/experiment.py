"""What only a model itself tells: whether it is causal, and whether it keeps the documents of a row apart.

Three forwards receive the arguments of one that trains, but for some token ids:

    documents      0 0 0 1 1 1        a, b: two ids
    first          a a a x y z
    second         b b b x y z        if outputs of document 1 change, its tokens see document 0
    third          a a a x b b        if an output before the changed tokens changes, the model is not causal

Rows of one document are laid out as two halves, if position ids or boundaries state the documents. The forwards run in
eval mode without gradients, from the same random state, on copies of buffers and caches.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook

from lab.core.errors import ConfigError, LabError
from lab.core.types import IntArray
from lab.integrations import layout
from lab.integrations.layout import PADDING, Names
from lab.integrations.retrieval import as_evaluated

Verdict = tuple[bool, bool]
"""Whether a model is causal, and whether it divides documents."""


class Experiment:
    """The verdicts on a model, by form of arguments: their names and dimensions, one row or more, and the kernel.

    The recurrent layers of a model that `is_hybrid` see all documents before, which says nothing of its attention.
    """

    def __init__(self, input: str, names: Names, logits: Callable[[Any], Tensor], is_hybrid: bool) -> None:
        self.input, self.names, self.logits, self.is_hybrid = input, names, logits, is_hybrid
        self.verdicts: dict[tuple[object, ...], Verdict] = {}
        self.has_run = False

    def examine(self, model: nn.Module, inner: nn.Module, arguments: Mapping[str, Any], n_positional: int) -> bool:
        """Return whether documents are divided with such arguments; run the forwards at the first of each form.

        `inner` is the module below wrappers of `model`, whose forward names the arguments, the positional ones first.

        Raises: ConfigError for a model that is not causal, and for a new form if the model is sharded; DataError for
            arguments that leave the layout open.
        """
        config = getattr(inner, "config", None)
        uses_cache = arguments.get("use_cache", getattr(config, "use_cache", None))
        passed = {(name, describe(value)) for name, value in arguments.items() if value is not None}
        form = (getattr(config, "_attn_implementation", None), uses_cache, frozenset(passed))
        if form not in self.verdicts:
            self.verdicts[form] = self.run(model, inner, dict(arguments), n_positional)
        is_causal, divides = self.verdicts[form]
        if not is_causal:
            rule = "later tokens change earlier outputs; f and g are those of causal models"
            raise ConfigError(f"model={type(inner).__name__}: {rule}")
        return not uses_cache if self.is_hybrid else divides

    def run(self, model: nn.Module, inner: nn.Module, arguments: dict[str, Any], n_positional: int) -> Verdict:
        """Run the forwards."""
        is_sharded = any(
            isinstance(part, (DTensor, FullyShardedDataParallel)) or hasattr(part, "ds_id")  # DeepSpeed's own name
            for part in (*inner.parameters(), *model.modules())
        )
        if is_sharded and self.has_run:
            # The other ranks may not have received such arguments, and run no forwards.
            rule = "is sharded, and its first forward did not have these arguments"
            raise ConfigError(f"model={type(inner).__name__}: {rule}; pass the same ones from the first forward on")
        self.has_run = True
        positional = list(arguments)[:n_positional]

        def forward(tokens: Tensor) -> Tensor | None:
            named = {**arguments, self.input: tokens}
            args = [named.pop(name) for name in positional]
            # FSDP gathers parameters in the forward of its wrapper. That of DDP has calls of all ranks.
            runs = model if is_sharded else inner
            return run_once(runs, args, named, self.logits, torch.atleast_2d(tokens).shape)

        with on_copies(inner, is_sharded):
            try:
                return self.compare(inner, forward, arguments)
            except LabError:
                for _ in range(3 * is_sharded):  # the other ranks wait
                    forward(arguments[self.input])
                raise
            finally:
                for module in model.modules():
                    if isinstance(module, FSDPModule):
                        module.unshard()  # in case that FSDP's own hook ran before

    def compare(
        self, model: nn.Module, forward: Callable[[Tensor], Tensor | None], arguments: dict[str, Any]
    ) -> Verdict:
        """Choose the tokens that are changed, and compare the outputs.

        Raises: ConfigError, DataError for arguments that leave the layout open.
        """
        documents = self.find_documents(arguments)
        if (documents == documents[:, :1]).all():
            self.lay_out_halves(arguments, documents.shape[1])
            documents = self.find_documents(arguments)
        ids = arguments[self.input]
        of_first, of_last = (torch.from_numpy(mask).to(ids.device) for mask in select_tokens(documents))
        low, high = int(ids.min()), int(ids.max())
        if low == high:
            high = abs(low - 1)
        base = ids.masked_fill(of_first.view(ids.shape), low)
        changed = (ids.masked_fill(of_first.view(ids.shape), high), base.masked_fill(of_last.view(ids.shape), high))
        outputs = [output for tokens in (base, *changed) if (output := forward(tokens)) is not None]
        if len(outputs) < 3:  # no output by token: the arguments are believed
            return True, True
        first, last = ((output - outputs[0]).abs().amax(-1).nan_to_num() for output in outputs[1:])
        is_attended = torch.from_numpy(documents != PADDING).to(ids.device)
        effect = relative_change(last, is_attended & (of_last.cumsum(-1) == 0), of_last)
        # Where numbers are rounded, the expert of a token, and so its rounding, may depend on the other tokens.
        is_rounded = torch.is_autocast_enabled(ids.device.type) or next(model.parameters()).dtype != torch.float32
        is_causal = effect <= (0.03 if is_rounded else 1e-5)
        # What changes earlier outputs of a causal model is rounding alone.
        return is_causal, relative_change(first, is_attended & ~of_first, of_first) <= max(1e-5, 4 * effect)

    def find_documents(self, arguments: Mapping[str, Any]) -> IntArray:
        """Return the document of each token; int64 (B, T)."""
        received = layout.read_arguments(self.input, arguments, self.names)
        layout.copy_to_host(received)
        return np.broadcast_to(layout.resolve_layout(received)[1], received.tokens.shape)

    def lay_out_halves(self, arguments: dict[str, Any], size: int) -> None:
        """Lay out rows as two documents, if position ids or boundaries state the documents."""
        half = (size + 1) // 2
        name, positions = layout.find("positions", arguments, self.names)
        boundaries = layout.find("boundaries", arguments, self.names)[1]
        if layout.find("mask", arguments, self.names)[1] is not None:
            return
        if positions is not None:
            arguments[name] = (torch.arange(size) % half).to(positions).expand_as(positions)
        for name, value in arguments.items():
            # The boundaries of the keys equal those of the queries.
            if boundaries is not None and isinstance(value, Tensor) and torch.equal(value, boundaries):
                arguments[name] = boundaries.new_tensor([0, half, size])


def describe(value: object) -> object:
    """Return a tensor's dimensions and whether it has several rows, a switch itself, and of others the type."""
    if isinstance(value, Tensor):
        return value.dim(), value.shape[:1] > (1,)
    return value if isinstance(value, (bool, str)) else type(value)


def relative_change(change: Tensor, of: Tensor, by: Tensor) -> float:
    """Return the largest change of the outputs of some tokens over that of the tokens that were changed."""
    own, others = (float(torch.where(tokens, change, 0).max()) for tokens in (by, of))
    return others / own if own else others


def select_tokens(documents: IntArray) -> tuple[Any, Any]:
    """Select what is changed: the first of several documents of a row, and the second half of the longest one.

    Shapes: int64 (B, T) -> bool (B, T) both.
    Example:
        >>> first, last = select_tokens(np.array([[-1, 0, 0, 1, 1, 1, 1]]))
        >>> first.astype(int).tolist(), last.astype(int).tolist()
        ([[0, 1, 1, 0, 0, 0, 0]], [[0, 0, 0, 0, 0, 1, 1]])
    """
    of_first, of_last = np.zeros((2, *documents.shape), dtype=np.bool_)
    for row, own in enumerate(documents):
        numbers, begins, sizes = np.unique(own[own != PADDING], return_index=True, return_counts=True)
        if len(numbers) > 1:
            of_first[row] = own == numbers[begins.argmin()]
        if len(numbers):
            longest = np.flatnonzero(own == numbers[sizes.argmax()])
            of_last[row, longest[len(longest) // 2 :]] = True
    return of_first, of_last


def run_once(
    model: nn.Module, args: list[Any], named: dict[str, Any], logits: Callable[[Any], Tensor], shape: torch.Size
) -> Tensor | None:
    """Run a forward in eval mode; return its logits, or without any the output of the last module.

    Some columns are enough: all logits of a large vocabulary would take gigabytes.

    Shapes: `shape` (B, T) -> float32 (B, T, columns); None without such an output.
    """
    last: Tensor | None = None

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal last
        if isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 2 and output.shape[:2] == shape:
            last = output[..., :: 1 + output.shape[-1] // 64].float().flatten(2).clone()

    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with as_evaluated(model), torch.random.fork_rng(devices):
        handle = register_module_forward_hook(keep)
        try:
            output = model(*args, **named)
        finally:
            handle.remove()
            # Casts without gradients would be used again by the forward that trains.
            torch.clear_autocast_cache()
        with suppress(Exception):  # a loss, for instance
            keep(model, (), logits(output))
    return last


@contextmanager
def on_copies(model: nn.Module, is_sharded: bool) -> Iterator[None]:
    """Let forwards change copies of a model's buffers, and of tensors and caches that are attributes of its modules."""
    copies = {id(part): part for part in (*model.modules(), *model.parameters())}  # what is not copied
    saved = [(module, vars(module).copy()) for module in model.modules()]
    try:
        for module, attributes in saved:
            vars(module)["_buffers"] = deepcopy(module._buffers, copies)
            # FSDP manages parameters as attributes.
            for name in () if is_sharded else attributes.keys() - vars(nn.Module()).keys():
                value = attributes[name]
                if isinstance(value, (Tensor, list, dict)) or "cache" in type(value).__name__.lower():
                    with suppress(Exception):  # what cannot be copied
                        vars(module)[name] = deepcopy(value, copies)
        yield
    finally:
        for module, attributes in saved:
            if is_sharded:
                vars(module)["_buffers"] = attributes["_buffers"]
            else:
                vars(module).clear()
                vars(module).update(attributes)
