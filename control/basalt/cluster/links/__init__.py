"""Links: the connections over which the members of one installation tell and ask each other."""
