"""The annotations and docstrings of a dataclass's fields, as they are written in its source."""

import ast
import inspect
import textwrap
from dataclasses import dataclass, is_dataclass


@dataclass(frozen=True)
class FieldDoc:
    """Annotation and docstring of one field."""

    owner: type
    """The class that declares it."""
    annotation: str
    text: str
    """The docstring under the field."""


def field_docs(config_class: type) -> dict[str, FieldDoc]:
    """Return the documented fields of a dataclass and of its bases, by name."""
    found: dict[str, FieldDoc] = {}
    for owner in reversed(config_class.__mro__):
        if is_dataclass(owner):
            found |= _own_docs(owner)
    return found


def _own_docs(owner: type) -> dict[str, FieldDoc]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
            found[statement.target.id] = FieldDoc(owner, ast.unparse(statement.annotation), text)
    return found
