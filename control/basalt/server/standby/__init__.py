"""The answers of a server that does not serve: its own, those that it reads by a permit, and those of another server."""
