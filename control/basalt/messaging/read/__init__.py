"""Reading a log: fetches, and who holds readers up."""
