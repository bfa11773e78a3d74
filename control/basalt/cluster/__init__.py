"""Several servers on one store: the lease, the term that it gives, the store that heeds it, and who the members are."""
