"""Consumer groups: who works on what, in memory; what is acknowledged is decided by the transaction log alone."""
