"""The transformers library's inverse frequencies, the reference of the methods that it has."""

TRANSFORMERS_TOL = 1e-6  # relative; the library works in float32, right to 6e-8 in each of some ten operations


def transformers_rope(rope_type, *, head_dim, theta, train_len, seq_len=None, **parameters):
    """Return (inverse frequencies, factor on cos and sin) as the library computes them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": rope_type, "rope_theta": theta, **parameters}
    if rope_type in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = train_len
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=train_len, rope_parameters=rope)
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=seq_len)
    return inv_freq.tolist(), scaling
