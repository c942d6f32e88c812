"""The miniature of arXiv:2410.18745 on two CPU cores, and the records of one that was run."""
