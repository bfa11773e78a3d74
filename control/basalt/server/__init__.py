"""The server process: wiring, services, fail-over."""
