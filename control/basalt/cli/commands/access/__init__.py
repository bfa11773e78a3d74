"""Commands about who asks and what they may do."""
