"""Prometheus' rules and Grafana's dashboards for Basalt, written by `make monitoring`; docs/operations/monitoring.md says how to use them."""
