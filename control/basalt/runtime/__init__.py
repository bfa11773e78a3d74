"""The base of every service of a process: the one writer, the calls of a store, durations."""
