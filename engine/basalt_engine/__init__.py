"""The storage engine of Basalt: keys, record batches, visibility, retention, tables and stores. Usable alone."""

# Of everything that one wheel brings: here, for whoever shows it imports only what stands below.
__version__ = "0.1.0.dev0"
