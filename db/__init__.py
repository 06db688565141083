"""Storage of tuning records: SQL tables, migrations, stores."""

if __name__ != "feinsum.db":
    raise ImportError(
        "the folder 'db' is installed as 'feinsum.db'; import it by that name"
    )
