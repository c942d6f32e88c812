"""The censored regression of reach against that of lifelines, which is written by others for survival times.

No extra installs it: `pip install lifelines`, then `pytest -m slow` on this file.
"""

import numpy as np
import pandas as pd
import pytest

from eval.engine.regression import fit

FAR = 1e4  # times the median, 30 sigma away: its gradient at 0 and at infinity is not a number
CLOSE = 2e-4  # of slopes, intercept and sigma: both searches stop at gradients of this order, and ours has a weak prior


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_censored_regression_is_that_of_lifelines(seed):
    """A log-normal accelerated failure time with bounds on either side is the same model, in other words."""
    lifelines = pytest.importorskip("lifelines")
    generator = np.random.default_rng(seed)
    f, window = generator.lognormal(10, 2, 300), generator.choice([128.0, 192.0, 256.0], 300)
    columns = pd.DataFrame({"f": f, "window": window})
    reach = np.exp(1.0 + 0.3 * np.log(columns["f"]) + 0.2 * np.log(columns["window"]) + generator.normal(0, 0.3, 300))
    first, last = np.quantile(reach, [0.2, 0.7])
    low = np.where(reach < first, 0.0, np.where(reach > last, last, reach))
    high = np.where(reach < first, first, np.where(reach > last, np.inf, reach))
    assert {"below": (reach < first).sum(), "beyond": (reach > last).sum()} == {"below": 60, "beyond": 90}
    with np.errstate(divide="ignore"):
        ours = fit(columns.assign(low=np.log(low), high=np.log(high)), ("f", "window"))
    middle, scale = np.log(columns).mean(), np.median(reach)  # its search begins at 0 and needs numbers near 1
    table = (np.log(columns) - middle).assign(low=np.maximum(low / scale, 1 / FAR), high=np.minimum(high / scale, FAR))
    theirs = lifelines.LogNormalAFTFitter().fit_interval_censoring(table, lower_bound_col="low", upper_bound_col="high")
    slopes = theirs.params_["mu_"][["f", "window"]].to_numpy()
    intercept = theirs.params_["mu_"]["Intercept"] + np.log(scale) - slopes @ middle
    expected = [*slopes, intercept, np.exp(theirs.params_["sigma_"]["Intercept"])]
    np.testing.assert_allclose([*ours.slopes, ours.intercept, ours.sigma], expected, rtol=0, atol=CLOSE)
