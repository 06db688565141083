"""Move facts between databases and files: import, export, merge, rekey, clean."""
