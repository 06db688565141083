"""The REST service that answers remote builds and teams."""

if __name__ != "feinsum.service":
    raise ImportError(
        "the folder 'service' is installed as 'feinsum.service'; import it by that name"
    )
