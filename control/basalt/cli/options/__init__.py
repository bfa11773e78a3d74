"""What the command line is given."""
