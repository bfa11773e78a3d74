"""Cells of transactional tables: names, keys, retention, table."""
