"""What the checks of the tree look through: all that stands in a module."""

from __future__ import annotations

import ast
from functools import cache


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a module, outer ones first. A dozen checks ask, and to walk a tree takes as long as to parse it."""
    return tuple(ast.walk(tree))
