"""The tools of operators: the scheduler and its jobs, audit, backups, and the diagnosis of transactions."""
