"""Transactions and snapshots as bytes for Tephra's clients."""
