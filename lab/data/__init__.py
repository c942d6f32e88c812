"""Corpora, token shards, segments and packs."""
