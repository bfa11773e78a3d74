"""The objects that users of the client hold, and what runs their plans: over which transport, with which token."""
