"""The settings at which methods are compared: all follow from the training length L and the length T of the tests.

arXiv:2410.18745, section 4.2 (Baselines, Table 1), tests every method at T = L. The methods that extrapolate are
set as if the training length were two thirds of L, so that the test is 3/2 as long:

    L' = 2/3 L,   factor = T / L' = 3/2                                                            (T = L)

Shorter tests keep these settings, as the paper sets a model up once. For longer ones, which the paper lacks, L' is
two thirds of the test's length up to the true training length, from where on methods extrapolate for real:

    L' = min(L, floor(2/3 T)),   factor = 3/2 for T <= 3/2 L,  else T / L                           (T > L)

    rope         the model's own frequencies, plain distance
    ntk          NTK-aware, factor
    yarn         YaRN, factor, train_len = L'
    rerope       w = L'/4, logits times the log-n factor of L' (the released code's results: 1024 of 4096, log n always)
    self_extend  w = L'/4 (Jin et al. 2024: 512 of Phi-2's 2048), G the smallest that keeps positions within L':
                 w + (T - w) / G <= L'
    dca          pretraining window c = L', chunk 3c/4 and local window c - s, the defaults of its own paper
    string       S = ceil(L/3), the least of the paper's L/3 <= S <= L/2, and W = 128, S // 2 where that is less (the
                 paper has W = 128 and W >= 32, far below S)

Everything else is as the model has it: ntk and yarn take the place of its frequencies at its theta, the others keep
its frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lab.positions import Distance, Frequencies, distance, frequencies
from lab.positions.string import of_length

METHODS = ("rope", "ntk", "yarn", "rerope", "self_extend", "dca", "string")


@dataclass(frozen=True)
class Setting:
    """One method and its settings in the comparison; `assumed_len` is the training length assumed for it.

    `frequency` and `distance` name methods with their parameters; an empty `frequency` is the model's own.
    """

    method: str
    train_len: int
    assumed_len: int
    frequency: dict[str, Any]
    distance: dict[str, Any]

    def place(self, own: Frequencies) -> tuple[Frequencies, Distance]:
        """Build the methods for a model that has frequencies of its own.

        Raises: ConfigError for parameters out of a method's range.
        """
        frequency = own
        if self.frequency:
            frequency = frequencies(**self.frequency, head_dim=2 * len(own.inv_freq), theta=own.theta)
        return frequency, distance(**self.distance)

    @property
    def parameters(self) -> dict[str, Any]:
        """Every derived parameter, by name."""
        given = {**self.frequency, **self.distance}
        return {name: value for name, value in given.items() if name != "method"}


def setting(method: str, train_len: int, length: int) -> Setting:
    """Derive a method's settings from the training length and the length of the tests.

    Units: tokens.
    Example:
        >>> setting("string", 2048, 2048).distance
        {'method': 'string', 'shift': 683, 'window': 128}
        >>> setting("self_extend", 192, 192).parameters, setting("self_extend", 192, 192).assumed_len
        ({'group': 2, 'window': 32}, 128)
    """
    assert method in METHODS, "the command refuses others"
    target = max(train_len, length)
    assumed = min(train_len, max(1, 2 * target // 3))
    factor = 1.5 if 2 * target <= 3 * train_len else target / train_len
    quarter = assumed // 4
    frequency: dict[str, Any] = {
        "ntk": {"method": "ntk", "factor": factor},
        "yarn": {"method": "yarn", "factor": factor, "train_len": assumed},
    }.get(method, {})
    distances: dict[str, dict[str, Any]] = {
        "rerope": {"method": "rerope", "window": quarter, "log_n": max(2, assumed)},
        "self_extend": {"method": "self_extend", "group": group(target, assumed, quarter), "window": quarter},
        "dca": {"method": "dca", "train_len": assumed, "chunk": max(1, 3 * assumed // 4)},
        "string": {"method": "string", **of_length(train_len)},
    }
    if method == "dca":
        distances["dca"]["window"] = assumed - distances["dca"]["chunk"]
    training_length = assumed if method not in ("rope", "string") else train_len
    return Setting(method, train_len, training_length, frequency, distances.get(method, {"method": "plain"}))


def overridden(item: Setting, name: str, given: Mapping[str, Any]) -> Setting:
    """Replace parameters of a setting, which goes by another name then.

    Example:
        >>> overridden(setting("string", 192, 192), "string:window=8", {"window": 8}).parameters
        {'shift': 64, 'window': 8}
    """
    item = replace(item, method=name, assumed_len=given.get("train_len", item.assumed_len))
    if item.frequency:
        return replace(item, frequency={**item.frequency, **given})
    return replace(item, distance={**item.distance, **given})


def group(target: int, assumed: int, window: int) -> int:
    """Find the smallest group G with w + (T - w) / G <= L'.

    Example:
        >>> group(192, 128, 32), group(4096, 1024, 256)
        (2, 5)
    """
    return -(-(target - window) // (assumed - window))
