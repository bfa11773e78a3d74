"""The blocking client, generated from `basalt.client.asynchronous` by `deploy/blocking_twin.py`: do not edit it here."""
