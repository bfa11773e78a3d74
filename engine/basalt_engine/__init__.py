"""The storage engine of Basalt: keys, record batches, visibility, retention, tables and stores. Usable alone."""
