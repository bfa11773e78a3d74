"""Spans: ranges of message ids, as a set, and with a value each."""
