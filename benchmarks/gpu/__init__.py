"""Stages of benchmarks.on_gpu: each a command of its own that measures one thing."""
