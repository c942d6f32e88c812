"""Types of arrays and of rows of results, and the values that stand for no target and for the usual confidence."""

from typing import Any

import numpy as np

IntArray = np.typing.NDArray[np.int64]
FloatArray = np.typing.NDArray[np.float64]
IGNORE = -100  # target of a token that is not scored: padding, and the last token of a document; torch's own value
Row = dict[str, Any]  # a line of a file of records
JsonObject = dict[str, Any]  # of a file of settings, such as config.json
CONFIDENCE = 0.95  # of the limits in a row, by default
