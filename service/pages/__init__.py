"""Pages for people, over the same database: HTML made on the server."""
