"""Commits and roll backs: what one decision does to topics, tables, sessions and the log."""
