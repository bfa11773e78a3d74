"""The coordinator, to members: what they propose for groups, and commits that they have prepared."""
