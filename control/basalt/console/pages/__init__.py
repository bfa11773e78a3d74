"""The pages, a file for each kind of thing."""
