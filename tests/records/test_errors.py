"""The codes of the tree of errors."""

from __future__ import annotations

import re

from feinsum import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]
ERRORS = [cls for cls in CLASSES if issubclass(cls, errors.FeinsumError)]


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
