"""The stores: memory, RocksDB (embedded default); HBase joins them."""
