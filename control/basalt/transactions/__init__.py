"""Transactions: a pure state machine that proposes edits, the log that makes them durable, and the driver of both."""
