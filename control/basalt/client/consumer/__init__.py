"""A consumer of a group: its batches, what is acknowledged of them, and the loop that handles one after the other."""
