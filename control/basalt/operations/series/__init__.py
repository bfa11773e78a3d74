"""The history of a server's figures: rings in memory, the table of figures, and a row a day that outlives the server."""
