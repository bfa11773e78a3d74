"""The store on an HBase cluster, reached through its Thrift gateways."""
