"""Drawings of values: charts, and the payloads of messages."""
