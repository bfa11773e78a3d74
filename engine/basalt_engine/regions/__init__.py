"""The rows by which Basalt and region servers talk to each other: snapshots and reports."""
