"""A canary: private names of other libraries exist where we expect them, and no unlisted one is used."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import trl
from trl.engine.upstream import PRIVATE_NAMES

SOURCE = Path(trl.__file__).parent
LISTED = {name for names in PRIVATE_NAMES.values() for name in names}
# Public in spirit: documented methods of the standard library whose names begin with an underscore.
STANDARD = {"_exit", "_asdict", "_replace", "_fields"}


@pytest.mark.parametrize(("owner", "name"), [(o, n) for o, names in PRIVATE_NAMES.items() for n in names])
def test_the_name_is_still_there(owner, name):
    module, _, attribute = owner.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert hasattr(found, name) or f"self.{name}" in inspect.getsource(found), f"{owner} has no {name} any more"


def test_no_other_private_name_is_used():
    defined: set[str] = set()
    used: dict[str, str] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if isinstance(node.ctx, ast.Store):
                    defined.add(node.attr)
                used.setdefault(node.attr, f"{file.relative_to(SOURCE)}:{node.lineno}")
    unknown = {name: where for name, where in used.items() if name not in defined | LISTED | STANDARD}
    assert not unknown
