"""Measure the cases of one stage: python -m benchmarks.gpu MODULE --out DIR [--toy]."""

from benchmarks.gpu.stage import main

if __name__ == "__main__":
    main()
