"""An index of the messages in a log: counts and statistics, by stretch and by topic."""
