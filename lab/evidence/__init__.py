"""Evidence: how far back in its text a target's nearest evidence lies, one method per file."""
