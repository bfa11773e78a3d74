"""Markers: what they say, and what they mean together."""
