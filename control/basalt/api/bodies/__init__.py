"""The bodies of the API, one struct each, for server, client and command line."""
