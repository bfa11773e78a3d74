"""Pruning: when may a failed writer be forgotten, and what is in the way. See docs/operations/pruning.md."""
