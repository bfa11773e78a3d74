"""Watermarks and ends of stream in the topics."""
