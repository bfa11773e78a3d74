"""The pages about who calls and what they may do."""
