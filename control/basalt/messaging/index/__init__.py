"""How much lies where in a log: counts and statistics."""
