"""Conversations with a server as pure plans, which a blocking or an async driver carries out."""
