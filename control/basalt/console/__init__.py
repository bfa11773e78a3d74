"""The console: pages of this server for its operators, below /console. A page is a list of API calls, made as whoever looks at it."""
