"""The options of the command line, and the profiles they come from."""
