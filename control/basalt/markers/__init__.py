"""Markers: watermarks and ends of stream in a topic's log, and the rules by which readers reconcile them. Pure.

Server and client share this package, so both sides draw the same conclusions. Format: docs/formats/markers.md.
"""
