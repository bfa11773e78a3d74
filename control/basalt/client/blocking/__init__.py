# Generated from basalt/client/asynchronous/__init__.py by deploy/blocking_twin.py: edit that one, then run `make format`.
"""The objects that users of the client hold, and what runs their plans: over which transport, with which token."""
