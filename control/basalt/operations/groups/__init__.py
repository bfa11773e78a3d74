"""Consumer groups as operators look at them: one group, all of them, and why a message waits."""
