"""The async client. The blocking one in `basalt.client.blocking` is generated from these modules by `deploy/blocking_twin.py`."""
