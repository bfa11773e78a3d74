"""Cells of transactional tables: names, keys, table."""
