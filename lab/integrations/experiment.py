"""What only a model itself tells: whether it is causal, and whether it keeps the documents of a row apart.

Three forwards receive the arguments of one that trains, but for some token ids:

    documents      0 0 0 1 1 1        a, b: two ids
    first          a a a x y z
    second         b b b x y z        if outputs of document 1 change, its tokens see document 0
    third          a a a x b b        if an output before the changed tokens changes, the model is not causal

Rows of one document are laid out as two halves, if position ids or boundaries state the documents. The forwards run in
eval mode without gradients, from the same random state, on copies of buffers and caches. Zeros in the parameters of a
copy are random numbers: a projection that begins with zeros hides what attention sees.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook

from lab.core.errors import ConfigError, DataError, LabError
from lab.integrations.layout import PADDING, Names, find_arguments, read_layout
from lab.integrations.retrieval import as_evaluated


class CausalityTest:
    """The verdicts on a model, by form of arguments: their names and dimensions, one row or more, and the kernel.

    The recurrent layers of a model that `is_hybrid` see all documents before, which says nothing of its attention.
    """

    def __init__(self, names: Names, logits: Callable[[object], Tensor], is_hybrid: bool) -> None:
        self.names, self.logits, self.is_hybrid = names, logits, is_hybrid
        self.verdicts: dict[tuple[object, ...], bool | None] = {}  # None: not causal
        self.has_run = False

    def examine(self, model: nn.Module, inner: nn.Module, arguments: Mapping[str, object], n_positional: int) -> bool:
        """Return whether documents are divided with such arguments; run the forwards at the first of each form.

        `inner` is the module below wrappers of `model`, whose forward names the arguments, the positional ones first.

        Raises: ConfigError for a model that is not causal, and for a new form if the model is sharded; DataError for
            arguments that leave the layout open.
        """
        config = getattr(inner, "config", None)
        uses_cache = arguments.get("use_cache", getattr(config, "use_cache", None))
        takes_switch = signature(inner.forward).parameters.keys() & {"use_cache", "kwargs"}
        if (
            uses_cache
            and takes_switch
            and any(module.training and getattr(module, "gradient_checkpointing", False) for module in inner.modules())
        ):
            # transformers keeps no cache then, but it would in eval mode, in which the forwards run.
            uses_cache, arguments = False, {**arguments, "use_cache": False}
        passed = frozenset((name, describe_argument(value)) for name, value in arguments.items() if value is not None)
        form = (getattr(config, "_attn_implementation", None), uses_cache, passed)
        if form not in self.verdicts:
            self.verdicts[form] = self.run(model, inner, dict(arguments), n_positional)
        divides = self.verdicts[form]
        if divides is None:
            raise ConfigError(
                f"model={type(inner).__name__}: later tokens change earlier outputs; f and g are those of causal models"
            )
        return not uses_cache if self.is_hybrid else divides

    def run(self, model: nn.Module, inner: nn.Module, arguments: dict[str, object], n_positional: int) -> bool | None:
        """Run the forwards, and compare their outputs: return whether the model divides; None if it is not causal."""
        is_sharded = any(
            isinstance(part, (DTensor, FullyShardedDataParallel)) or hasattr(part, "ds_id")  # DeepSpeed's own name
            for part in (*inner.parameters(), *model.modules())
        )
        if is_sharded and self.has_run:
            # The other ranks may not have received such arguments, and run no forwards.
            raise ConfigError(
                f"model={type(inner).__name__}: is sharded, and its first forward did not have these arguments; pass "
                "the same ones from the first forward on"
            )
        self.has_run = True
        # FSDP gathers parameters in the forward of its wrapper. That of DDP has calls of all ranks.
        runner = model
        if not is_sharded:
            runner = inner
            with suppress(Exception):  # what cannot be copied
                runner = deepcopy(inner, {id(parameter): fill_zeros(parameter) for parameter in inner.parameters()})
        saved = {module: module._buffers for module in runner.modules()}
        (input,) = self.names["input"]
        ids: Any = arguments.get(input)

        def forward(tokens: Tensor) -> Tensor:
            return run_once(runner, {**arguments, input: tokens}, n_positional, self.logits, tokens)

        try:
            for module, buffers in saved.items():
                module._buffers = deepcopy(buffers)
            documents = self.find_documents(arguments)
            if (documents == documents[:, :1]).all():
                self.lay_out_halves(arguments, documents.shape[1])
                documents = self.find_documents(arguments)
            of_first, of_last = select_tokens(documents)
            low, high = int(ids.min()), int(ids.max())
            if low == high:
                high = abs(low - 1)
            is_first = of_first.view(ids.shape)
            base, other = ids.masked_fill(is_first, low), ids.masked_fill(is_first, high)
            output, *outputs = map(forward, (base, other, base.masked_fill(of_last.view(ids.shape), high)))
        except LabError:
            for _ in range(3 if is_sharded and isinstance(ids, Tensor) else 0):  # the other ranks wait
                forward(ids)
            raise
        finally:
            # Casts without gradients would be used again by the forward that trains.
            torch.clear_autocast_cache()
            for module, buffers in saved.items():
                module._buffers = buffers
                if isinstance(module, FSDPModule):
                    module.unshard()  # in case that FSDP's own hook ran before
        first, last = ((each - output).abs().amax(-1).nan_to_num() for each in outputs)
        is_attended = documents != PADDING
        effect = relative_change(last, is_attended & (of_last.cumsum(-1) == 0), of_last)
        # Where numbers are rounded, the expert of a token, or the scale of 8 bits, may depend on the other tokens. In
        # other models an output before the changed tokens has the same bits.
        is_rounded = torch.is_autocast_enabled(documents.device.type) or next(inner.parameters()).dtype != torch.float32
        has_experts = re.search("moe|mixture|expert|router|switch|8", str({*map(type, inner.modules())}).lower())
        if effect > (0.03 if is_rounded and has_experts else 1e-5):
            return None
        # What changes earlier outputs of a causal model is rounding alone.
        return relative_change(first, is_attended & ~of_first, of_first) <= max(1e-5, 4 * effect)

    def find_documents(self, arguments: Mapping[str, object]) -> Tensor:
        """Return the document of each token; int64 (B, T)."""
        received = read_layout(arguments, self.names)
        if not received.is_known:
            raise DataError(received.error)
        return received.documents

    def lay_out_halves(self, arguments: dict[str, object], size: int) -> None:
        """Lay out rows as two documents, if position ids or boundaries state the documents."""
        half = (size + 1) // 2
        found = find_arguments(arguments, self.names)
        if found["mask"][1] is not None:
            return
        name, positions = found["positions"]
        if positions is not None:
            arguments[name] = (torch.arange(size) % half).to(positions).expand_as(positions)
        name, ends = found["boundaries"]
        # The boundaries of the keys equal those of the queries.
        for boundaries in arguments.keys() & {name, "cu_seq_lens_k"}:
            arguments[boundaries] = ends.new_tensor([0, half, size])


def fill_zeros(parameter: Tensor) -> Tensor:
    """Return a parameter that trains, with random numbers in place of zeros, by which attention has no effect yet."""
    if not parameter.requires_grad or parameter.all():
        return parameter
    generator = torch.Generator(parameter.device).manual_seed(0)
    noise = torch.empty_like(parameter).normal_(0, 0.05, generator=generator)
    return nn.Parameter(parameter.where(parameter != 0, noise))


def describe_argument(value: object) -> object:
    """Return a tensor's dimensions and whether it has several rows, a switch itself, and of others the type."""
    if isinstance(value, Tensor):
        return value.dim(), value.shape[:1] > (1,)
    return value if isinstance(value, (bool, str)) else type(value)


def relative_change(change: Tensor, of: Tensor, by: Tensor) -> float:
    """Return the largest change of the outputs of some tokens over that of the tokens that were changed."""
    own, others = (float((change * tokens).max()) for tokens in (by, of))
    return others / (own or 1)


def select_tokens(documents: Tensor) -> tuple[Tensor, Tensor]:
    """Select what is changed: the first of several documents of a row, and the second half of the longest one.

    Shapes: int64 (B, T) -> bool (B, T) both.
    Example:
        >>> first, last = select_tokens(torch.tensor([[-1, 0, 0, 1, 1, 1, 1]]))
        >>> first.int().tolist(), last.int().tolist()
        ([[0, 1, 1, 0, 0, 0, 0]], [[0, 0, 0, 0, 0, 1, 1]])
    """
    of_first, of_last = torch.zeros((2, *documents.shape), dtype=torch.bool, device=documents.device)
    for row, numbers in enumerate(documents):
        attended = numbers[numbers != PADDING]
        if len(attended):
            of_first[row] = (numbers == attended[0]) & (attended != attended[0]).any()
            indices = (numbers == attended.mode().values).nonzero()[:, 0]  # of several longest ones, the first
            of_last[row, indices[len(indices) // 2 :]] = True
    return of_first, of_last


def run_once(
    model: nn.Module,
    arguments: dict[str, object],
    n_positional: int,
    logits: Callable[[object], Tensor],
    tokens: Tensor,
) -> Tensor:
    """Run a forward in eval mode; return its logits, or without any the output of the last module.

    Some columns are enough: all logits of a large vocabulary would take gigabytes. Without an output by token they are
    zeros, so that the arguments are believed.

    Shapes: tokens (B, T) or (T,) -> float32 (B, T, columns).
    """
    device = tokens.device
    last = torch.atleast_2d(tokens)[..., None] * 0.0

    def keep(module: nn.Module, args: object, output: object) -> None:
        nonlocal last
        if isinstance(output, Tensor) and output.is_floating_point() and output.shape[:2] == last.shape[:2]:
            last = output[..., :: 1 + output.shape[-1] // 64].float().flatten(2).clone()

    args = [arguments.pop(name) for name in list(arguments)[:n_positional]]
    with as_evaluated(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        with register_module_forward_hook(keep):
            output = model(*args, **arguments)
        with suppress(Exception):  # a loss, for instance
            keep(model, (), logits(output))
    return last
