"""The base of one server process, below every service: the one writer, the calls of a store, logging."""
