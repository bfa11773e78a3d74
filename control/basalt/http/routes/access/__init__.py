"""The calls about who calls, what they may do, and how much of it."""
