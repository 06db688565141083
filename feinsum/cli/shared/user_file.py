"""Read a Loopy translation unit from a Python file of the user: ``FILE.py[:name]``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import typer

from feinsum.words import describe_type, get_reason

if TYPE_CHECKING:
    import loopy as lp

DEFAULT_FUNCTION = "build"
_TARGET = re.compile(r"(?P<path>.+\.py)(:(?P<function>\w+))?")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DYNAMIC = {"exec", "globals", "setattr", "vars"}
"""Functions that bind names which the text of a file does not show."""
_MODULE = "feinsum_user_file"


def is_file(target: str) -> bool:
    """Return whether a target is ``FILE.py`` or ``FILE.py:function``."""
    return _TARGET.fullmatch(target) is not None


def read_translation_unit(target: str) -> lp.TranslationUnit:
    """Return the kernel of a file: a variable, or the result of a function.

    The function takes no arguments. Whatever the file prints goes to stderr.

    Raises:
        typer.BadParameter: if there is no such file, kernel or function, if the
            function fails, or if it returns something else.
    """
    import loopy as lp

    match = _TARGET.fullmatch(target)
    if match is None:
        raise _refuse(f"{target!r} is not of the form FILE.py or FILE.py:function")
    path, function = Path(match["path"]), match["function"]
    if not path.exists():
        raise _refuse(f"there is no file {str(path)!r}")
    _check_name(path, function or DEFAULT_FUNCTION)
    with (
        _report_user_errors(path),
        _import_from_folder(path),
        redirect_stdout(sys.stderr),
    ):
        name = function or DEFAULT_FUNCTION
        named = _get_function(_load(path, name), path, name)
        t_unit = named if isinstance(named, lp.TranslationUnit) else named()
    if isinstance(t_unit, lp.TranslationUnit):
        return t_unit
    raise _refuse(
        f"{named.__name__}() of {path} returns {describe_type(t_unit)}, "
        "expected a loopy.TranslationUnit"
    )


def _check_name(path: Path, name: str) -> None:
    """Refuse a name that the file cannot have before any of it runs.

    A file that cannot be read, or binds names in ways that only running it shows, is
    left to be run.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    top = list(_walk_module_scope(tree))
    bound = {node.name for node in top if isinstance(node, _DEFINITIONS)}
    candidates = bound | set(_find_assigned_calls(top))
    names = [node for node in top if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    imported = [alias for n in top if isinstance(n, _IMPORTS) for alias in n.names]
    bound |= {(alias.asname or alias.name).partition(".")[0] for alias in imported}
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # a star import or exec may bind any name
    is_sure = not bound & {"*", "__getattr__"} and not called & _DYNAMIC
    if name not in bound and is_sure:
        raise _make_unknown_error(path, name, candidates)


def _find_assigned_calls(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the variables that may be kernels."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))


def _walk_module_scope(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes whose names are those of the module."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, _DEFINITIONS):
            yield from _walk_module_scope(node)


def _load(path: Path, name: str) -> Any:
    """Run a file as far as the name needs it, and return its module."""
    spec = spec_from_file_location(_MODULE, path)
    if spec is None:
        raise ImportError("not a Python file")
    tree = ast.parse(path.read_bytes(), str(path))
    module = module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses look their module up
    needed = ast.Module(_select_statements(tree.body, name), type_ignores=[])
    exec(compile(needed, str(path), "exec"), vars(module))  # noqa: S102
    return module


def _select_statements(statements: Sequence[ast.stmt], name: str) -> list[ast.stmt]:
    """Return the statements of a file up to the last that assigns to a variable.

    A script may go on to tune its kernel or to run it, and only the kernel is wanted. A
    function may call what is defined after it, so it needs the whole file.
    """
    last = 0
    for k, statement in enumerate(statements, start=1):
        nodes = [statement, *_walk_module_scope(statement)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        if any(node.id == name and isinstance(node.ctx, ast.Store) for node in names):
            last = k
        if any(isinstance(n, _DEFINITIONS) and n.name == name for n in nodes):
            return list(statements)
    return list(statements[: last or None])


def _get_function(module: Any, path: Path, name: str) -> Any:
    function = getattr(module, name, None)
    if callable(function):
        return function
    if function is not None:
        raise _refuse(
            f"{path}:{name} is a value of type {type(function).__name__}; expected a "
            "kernel, or a function that returns one"
        )
    raise _make_unknown_error(
        path, name, [n for n, value in vars(module).items() if _is_own(value)]
    )


def _is_own(value: Any) -> bool:
    """Return whether a value is a kernel, or a function of the file."""
    import loopy as lp

    return isinstance(value, lp.TranslationUnit) or (
        callable(value) and getattr(value, "__module__", None) == _MODULE
    )


def _make_unknown_error(
    path: Path, name: str, candidates: Iterable[str]
) -> typer.BadParameter:
    names = ", ".join(sorted(n for n in candidates if not n.startswith("_"))) or "none"
    return _refuse(
        f"{path} has no {name!r}; name a kernel, or a function that returns one, as in "
        f"{path}:NAME; names there: {names}"
    )


@contextmanager
def _import_from_folder(path: Path) -> Iterator[None]:
    """Let the file import its neighbours, as a script can."""
    folder = str(path.resolve().parent)
    # first, as Python does for a script
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _report_user_errors(path: Path) -> Iterator[None]:
    """Turn an error of the user's code into one message with file and line.

    ``sys.exit`` is an error as well, whatever its code.
    """
    try:
        yield
    except typer.TyperException:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in extract_tb(error.__traceback__)
            if Path(frame.filename).name == path.name
        ]
        # a syntax error has no frame in its file
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines = [error.lineno]
        location = f", line {lines[-1]}" if lines else ""
        reason = get_reason(error) if isinstance(error, Exception) else error
        raise _refuse(f"{path}{location}: {type(error).__name__}: {reason}") from error


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="FILE")
