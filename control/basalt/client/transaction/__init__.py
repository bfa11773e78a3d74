"""Transactions as the application sees them."""
