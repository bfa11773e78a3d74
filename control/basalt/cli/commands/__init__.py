"""One module for each command, loaded only when it is called: `basalt --help` must not pay for a server's imports."""
