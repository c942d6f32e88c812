"""Stand-ins for GPU kernels that run on a CPU, written from the documentation and source of the real ones.

Each takes what the real kernel takes, in its layout and dtypes, computes attention densely in float64 from the
definition, and refuses what the real one refuses. Where the real one would read or write the wrong memory in silence,
the stand-in raises AssertionError; memory that it leaves unwritten holds NaN. None of it is the lab's.
"""

from tests.model.stand_ins.operators import OPERATORS, on_cpu
from tests.model.stand_ins.packages import (
    BlockDiagonalCausalFromBottomRightMask,
    flash_attn_varlen_func,
    memory_efficient_attention,
    varlen_attn_2_11,
    varlen_attn_2_12,
)

__all__ = [
    "OPERATORS",
    "BlockDiagonalCausalFromBottomRightMask",
    "flash_attn_varlen_func",
    "memory_efficient_attention",
    "on_cpu",
    "varlen_attn_2_11",
    "varlen_attn_2_12",
]
