"""Results of any evaluations as one table."""
