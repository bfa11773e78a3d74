"""How Basalt and its HBase are run: container images, and a standalone HBase for tests and newcomers."""
