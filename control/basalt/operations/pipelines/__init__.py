"""Pipelines: flows that the log tells of, and the answers made of them."""
