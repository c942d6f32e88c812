"""Types of arrays, and the target that no loss counts."""

import numpy as np

IntArray = np.typing.NDArray[np.int64]
FloatArray = np.typing.NDArray[np.float64]
IGNORE = -100  # target of a token that is not scored: padding, and the last token of a document; torch's own value
