"""Transactional tables: cells that a transaction changes in the same decision as it publishes messages."""
