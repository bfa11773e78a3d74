"""The rules of transactions, pure: no time, no input, no output."""
