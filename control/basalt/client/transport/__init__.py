"""Connections to servers."""
