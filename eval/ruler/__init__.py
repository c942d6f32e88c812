"""RULER (Hsieh et al. 2024, arXiv:2404.06654): 13 synthetic tasks at any length, with any tokenizer."""
