"""The runs that benchmarks.on_gpu measures."""
