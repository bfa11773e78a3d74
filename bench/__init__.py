"""Benchmarks: each figure next to its yardstick, measured in the same run. `make bench`."""
