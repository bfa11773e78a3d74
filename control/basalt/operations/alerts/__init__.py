"""Alerts: one table of them for Prometheus, for the server itself and for the docs; and what is true of them now."""
