"""The dealing of groups: what is free, what came back, and which of it a fetch gets."""
