"""Code shared by the evaluations: models under test, cases, results on disk, texts, statistics."""
