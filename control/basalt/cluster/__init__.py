"""Several servers on one store: the lease, the term that it gives, and the store that heeds it."""
