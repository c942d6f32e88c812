"""Who may see whom: one predicate per file, on (query index, key index, query document, key document)."""

from lab.masks import anchor, causal, document

METHODS = {"causal": causal, "document": document, "anchor": anchor}
