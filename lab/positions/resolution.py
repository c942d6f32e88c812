"""The parameters of methods that are not stated: all follow from the training length L and the length T of the texts.

arXiv:2410.18745, section 4.2 (Baselines, Table 1), tests every method at T = L. The methods that extrapolate are
set as if the training length were two thirds of L, so that the test is 3/2 as long:

    L' = 2/3 L,   factor = T / L' = 3/2                                                            (T = L)

Shorter tests keep these settings, as the paper sets a model up once. For longer ones, which the paper lacks, L' is
two thirds of the test's length, and the true training length at most. From there on methods extrapolate for real:

    L' = min(L, floor(2/3 T)),   factor = 3/2 for T <= 3/2 L,  else T / L                           (T > L)

    ntk          NTK-aware, factor
    yarn         YaRN, factor, train_len = L'
    rerope       w = L'/4, logits times the log-n factor of L' (the released code's results: 1024 of 4096, log n always)
    self_extend  w = L'/4 (Jin et al. 2024: 512 of Phi-2's 2048), G the smallest that keeps positions within L':
                 w + (T - w) / G <= L'
    dca          pretraining window c = L', chunk 3c/4 and local window c - s, the defaults of its own paper
    string       S = ceil(L/3), the least of the paper's L/3 <= S <= L/2, and W = 128, S // 2 where that is less (the
                 paper has W = 128 and W >= 32, far below S; the released code takes int(0.33 L), below its least)
"""

from lab.positions.string import WINDOW


def assumed_len(length: int, train_len: int) -> int:
    """Return L', the training length that methods assume for texts of a length, in tokens."""
    return min(train_len, max(1, 2 * max(train_len, length) // 3))


def resolve(method: str, length: int, train_len: int) -> dict[str, float]:
    """Return the parameters of a method for texts of a length; none for other methods than those above.

    Units: tokens.
    Example:
        >>> resolve("string", 131_072, 131_072), resolve("string", 384, 192)
        ({'shift': 43691, 'window': 128}, {'shift': 64, 'window': 32})
        >>> resolve("self_extend", 192, 192)
        {'group': 2, 'window': 32}
    """
    if method == "string":
        shift = -(-train_len // 3)
        return {"shift": shift, "window": min(WINDOW, shift // 2)}
    # Texts shorter than the training length keep the settings of those as long as it.
    target = max(train_len, length)
    assumed = assumed_len(length, train_len)
    quarter = assumed // 4
    if method in ("ntk", "yarn"):
        factor = 1.5 if 2 * target <= 3 * train_len else target / train_len
        return {"factor": factor} if method == "ntk" else {"factor": factor, "train_len": assumed}
    if method == "rerope":
        return {"window": quarter, "log_n": max(2, assumed)}
    if method == "self_extend":
        group = -(-(target - quarter) // (assumed - quarter))  # the smallest with w + (T - w) / G <= L'
        return {"group": group, "window": quarter}
    if method == "dca":
        chunk = max(1, 3 * assumed // 4)
        return {"train_len": assumed, "chunk": chunk, "window": assumed - chunk}
    return {}
