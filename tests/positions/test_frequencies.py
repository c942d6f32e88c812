"""What holds for every frequency method, at ordinary and at extreme parameters, and what transformers computes."""

import pytest
import torch

from lab.positions import frequencies
from tests.positions.cases import FREQUENCIES

FLOAT32_TOL = 1e-6  # relative; transformers works in float32, right to 6e-8 in each of some ten operations
FLOAT32_RAMP = 1e-7  # its error of 1 - ramp, which is large beside what is left of a pair slowed by the factor
CASES = {name: (name, parameters) for name, parameters in FREQUENCIES.items()}
CASES |= {
    "pi_barely": ("pi", {"factor": 1.001}),
    "ntk_far": ("ntk", {"factor": 1000.0}),
    "dynamic_ntk_at_5000": ("dynamic_ntk", {"factor": 4.0, "train_len": 2048, "length": 5000}),
    "ntk_by_parts_between_pairs": ("ntk_by_parts", {"factor": 40.0, "train_len": 96, "truncate": False}),
    "yarn_step": ("yarn", {"factor": 8.0, "train_len": 6}),
    "llama3_narrow": ("llama3", {"factor": 32.0, "train_len": 64, "low_freq_factor": 1.0, "high_freq_factor": 1.5}),
}
SIZES = ((4, 10_000.0), (64, 10_000.0), (128, 500_000.0), (32, 100.0))  # head_dim and rotary base
every = pytest.mark.parametrize(("method", "parameters"), CASES.values(), ids=CASES)
EXTENDED = [name for name, (_, parameters) in CASES.items() if "factor" in parameters and "length" not in parameters]


@every
def test_inverse_frequencies_fall_and_a_factor_is_float64_like_the_positions(method, parameters):
    for head_dim, theta in SIZES:
        built = frequencies(method, head_dim=head_dim, theta=theta, **parameters)
        assert (built.inv_freq.dtype, built.inv_freq.shape) == (torch.float64, (head_dim // 2,))
        assert (built.inv_freq.isfinite() & (built.inv_freq >= 0)).all()
        assert (built.inv_freq.diff() < 0)[built.inv_freq[:-1] > 0].all()
    for q_pos in (torch.arange(0), torch.tensor([5]), torch.tensor([[0, 1], [4, 100_000]])):
        factor = built.logit_factor(q_pos, 0)
        assert (factor.dtype, factor.shape) == (torch.float64, q_pos.shape)
        assert built.scales_logits or (factor == 1).all()


@pytest.mark.parametrize("name", [*EXTENDED, "dynamic_ntk_up_to_the_trained_length", "abf"])
def test_factor_one_or_the_same_base_is_rope(name):
    method, parameters = CASES.get(name, ("dynamic_ntk", {"factor": 3.3, "train_len": 48, "length": 48}))
    parameters = parameters | ({"factor": 1.0} if name in EXTENDED else {})
    for head_dim, theta in SIZES:
        built = frequencies(method, head_dim=head_dim, theta=theta, **parameters)
        assert torch.equal(built.inv_freq, frequencies("rope", head_dim=head_dim, theta=theta).inv_freq)
        assert (built.logit_factor(torch.arange(5), 3) == 1.0).all()


OTHER = {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.3}
WAVES = [(1.5, 1.0, 4.0), (32.0, 0.5, 1.5), (32.0, 2.0, 32.0)]
PEERS = {  # the library's rope type, and parameters of both
    "pi": ("linear", [{"factor": 1.5}, {"factor": 32.0}]),
    "dynamic_ntk": ("dynamic", [{"factor": f, "length": n} for f in (1.0, 6.5) for n in (None, 2048, 2049, 16384)]),
    "ntk_by_parts": ("yarn", [{"factor": 4.0, "truncate": cut, "attention_factor": 1.0} for cut in (True, False)]),
    "yarn": (
        "yarn",
        [{"factor": 1.5}, {"factor": 4.0, **OTHER}, {"factor": 32.0, "beta_fast": 64.0, "beta_slow": 0.25}],
    ),
    "llama3": ("llama3", [{"factor": s, "low_freq_factor": low, "high_freq_factor": high} for s, low, high in WAVES]),
}


@pytest.mark.parametrize("method", PEERS)
@pytest.mark.parametrize(("theta", "train_len"), [(10000.0, 2048), (500000.0, 8192), (100.0, 96)])
def test_it_is_what_transformers_computes(method, theta, train_len):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope_type, cases = PEERS[method]
    for parameters in cases:
        rope = {name: value for name, value in parameters.items() if name != "length"}
        rope |= {} if rope_type in ("linear", "dynamic") else {"original_max_position_embeddings": train_len}
        rope |= {"rope_type": rope_type, "rope_theta": theta}
        config = LlamaConfig(head_dim=32, max_position_embeddings=train_len, rope_parameters=rope)
        expected, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=parameters.get("length"))
        own = {k: v for k, v in parameters.items() if not (method == "ntk_by_parts" and k == "attention_factor")}
        ours = frequencies(method, head_dim=32, theta=theta, train_len=train_len, **own)
        tolerance = max(FLOAT32_TOL, parameters["factor"] * FLOAT32_RAMP)
        assert ours.inv_freq.tolist() == pytest.approx(expected.tolist(), rel=tolerance)
        # the library multiplies cos and sin of both query and key
        assert float(ours.logit_factor(torch.tensor([7]))) == pytest.approx(scaling**2, rel=FLOAT32_TOL)
