"""Removal of rows that no reader can reach any more, where the store does not drop them itself."""
