"""Job `retention`: gives back the space of messages that no reader can see any more. What goes: docs/reference/jobs.md."""
