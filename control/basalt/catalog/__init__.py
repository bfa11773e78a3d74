"""Topics and tables: names, properties and generations."""
