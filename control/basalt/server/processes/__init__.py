"""`basalt serve --processes N`: several servers on one machine, each in a process of its own, and the supervisor that keeps them."""
