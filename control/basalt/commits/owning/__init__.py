"""The owner of topics, as a commit meets it: what it keeps, places and hides; and all owners, as the coordinator has them."""
