"""The transaction log: bytes and recovery."""
