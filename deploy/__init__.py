"""Ways to run Basalt and its HBase: container images, and a standalone HBase for tests and newcomers."""
