"""What one server process needs below every service: the one writer, where a store is called, logging."""
