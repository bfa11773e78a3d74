"""The Thrift face: Apache Tephra's transaction service, so that its clients work with Basalt. See docs/reference/thrift.md."""
