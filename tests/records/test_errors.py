"""The tree of errors: as it is drawn, with the codes that are drawn."""

from __future__ import annotations

import re

from feinsum import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]
ERRORS = [cls for cls in CLASSES if issubclass(cls, errors.FeinsumError)]


def _drawn() -> dict[str, tuple[str | None, str]]:
    """The parent and the code of each class, read off the docstring's drawing."""
    drawn, path = {}, []
    for line in errors.__doc__.splitlines():
        if found := re.fullmatch(r"    ([│├└─ ]*)(\w+Error) +([a-z-]+)", line):
            branch, name, code = found.groups()
            path[len(branch) // 4 :] = [name]
            drawn[name] = (path[-2] if len(path) > 1 else None, code)
    return drawn


def test_the_tree_is_drawn():
    """The drawing holds the errors of the module, each under its base class and with
    its code: all of them and no others.
    """
    assert _drawn() == {
        cls.__name__: (
            None if cls is errors.FeinsumError else cls.__bases__[0].__name__,
            cls.code,
        )
        for cls in ERRORS
    }


def test_codes_are_distinct():
    """No two errors share a code; codes are kebab-case."""
    codes = [cls.code for cls in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_code_leads_to_the_class():
    """An error is made anew from its code and message, in another process; one of a
    code that is not known here keeps it in its message.
    """
    for cls in ERRORS:
        error = errors.make_error(cls.code, "why")
        assert type(error) is cls
        assert str(error) == "why"
    error = errors.make_error("no-such-code", "why")
    assert type(error) is errors.FeinsumError
    assert str(error) == "no-such-code: why"


def test_warning_is_no_error():
    """The one warning is a user warning: it does not interrupt."""
    assert [cls for cls in CLASSES if cls not in ERRORS] == [errors.FeinsumWarning]
    assert issubclass(errors.FeinsumWarning, UserWarning)
