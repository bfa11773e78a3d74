"""A standalone HBase with its Thrift gateways, from Maven: for tests, the demo and newcomers. `python -m deploy.hbase --help`."""
