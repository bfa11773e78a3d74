"""Messages: publish, store, roll back, fetch; the order of each topic and who may see what of it."""
