"""The log of a topic: its end, the rows that are appended, its tail in memory, who waits for it."""
