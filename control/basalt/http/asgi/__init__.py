"""HTTP itself: requests, responses, codings, problems."""
