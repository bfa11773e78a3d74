"""The command line: each command is a thin call of the client. Reference: docs/reference/cli.md."""
