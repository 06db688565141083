"""The database behind the service: trust, demand, API keys, lists for its pages."""
