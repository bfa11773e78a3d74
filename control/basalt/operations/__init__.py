"""What operators use: the scheduler and its jobs, audit, backups, and the diagnosis of transactions."""
