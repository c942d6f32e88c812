"""The probe lab: why a language model uses less context than it was trained on, and what changes that."""
