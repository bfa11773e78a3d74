"""Offline jobs: work over whole tables and topics that Spark spreads over machines. docs/spark/jobs.md."""
