"""What Basalt and region servers tell each other: snapshots and reports."""
