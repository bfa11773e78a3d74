"""The stores: in memory, on RocksDB (the embedded default), on HBase."""
