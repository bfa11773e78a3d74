"""Basalt's tables in HBase, seen by an operator: made, checked, given a new coprocessor, removed.

All of it talks to HBase's Thrift gateways and not to a Basalt server, which cannot start without the tables.
"""
