"""The dealing of keyed groups."""
