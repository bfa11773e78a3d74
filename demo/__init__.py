"""The demo: a real access log, published in transactions through a SIGKILL, read back and checked. Run by `make demo`."""
