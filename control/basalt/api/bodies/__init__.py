"""The bodies of the API, one struct each: used by the server, the client, the command line and the OpenAPI document."""
