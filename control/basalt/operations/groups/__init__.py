"""Consumer groups as operators see them: how far each is behind, why one is not worked on, and the list of all."""
