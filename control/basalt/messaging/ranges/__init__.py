"""Ranges that read the same for ever."""
