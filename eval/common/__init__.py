"""What the evaluations share: models under test, cases, results on disk, texts, statistics."""
