"""The pages about topics, their messages, and who reads and writes them."""
