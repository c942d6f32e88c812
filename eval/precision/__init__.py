"""The effect of bfloat16 on RoPE's shift invariance."""
