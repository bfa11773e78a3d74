"""Other systems doing the same work on the same machine, in turns with Basalt."""
