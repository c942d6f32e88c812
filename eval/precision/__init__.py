"""What bfloat16 does to RoPE's shift invariance."""
