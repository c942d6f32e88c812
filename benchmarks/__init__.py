"""Speed, measured again by each command."""
