"""Which of several servers on one store leads: the lease, the term that it gives, and the store that heeds it."""
