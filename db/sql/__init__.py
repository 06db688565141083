"""An SQL database of facts: SQLite by default, PostgreSQL for teams."""
