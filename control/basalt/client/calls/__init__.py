"""The calls of the API, one file for each resource."""
