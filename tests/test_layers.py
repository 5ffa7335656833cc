"""The architecture diagram, as a test: a module imports only from lower layers, and `launch` starts without torch."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trl

ROOT = Path(trl.__file__).parent
LAYERS = [
    {"errors"},
    {"layout"},
    {"launch", "losses", "rewards"},
    {"data", "distributed"},
    {"models", "rollout"},
    {"engine"},
    {"trainers", "planner", "doctor", "observe"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path: Path, source: str) -> Iterator[tuple[str, int]]:
    """Names of modules that a file imports anywhere in it, absolute, with the line."""
    package = ("trl", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # `from trl import data` names a layer only after the import
            yield from ((f"{base}.{alias.name}" if base == "trl" else base, node.lineno) for alias in node.names)


def violations(path: Path, source: str) -> list[str]:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    found = []
    for name, line in imported(path, source):
        parts = name.split(".")
        if parts[0] == "trl":
            other = parts[1] if len(parts) > 1 else ""
            if other != own and LEVEL.get(other, len(LAYERS)) >= LEVEL[own]:
                found.append(f"{path.relative_to(ROOT)}:{line}: {own} imports {name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_lower_layers(path):
    assert violations(path, path.read_text()) == []


@pytest.mark.parametrize("path", sorted((ROOT / "launch").glob("*.py")), ids=lambda path: path.name)
def test_launch_imports_no_torch_at_module_level(path):
    tree = ast.parse(path.read_text())
    heavy = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [line for line in heavy if line.split()[1].partition(".")[0] in ("torch", "transformers", "yaml")]


@pytest.mark.parametrize(
    ("file", "line", "allowed"),
    [
        ("data/x.py", "from trl.layout.order import Order", True),
        ("data/x.py", "from ..layout import order", True),
        ("data/x.py", "from .packing import pack", True),
        ("data/x.py", "from ..distributed.mesh import Mesh", False),
        ("data/x.py", "def f():\n    from trl.engine import trainer", False),
        ("data/x.py", "if TYPE_CHECKING:\n    import trl.engine.trainer", False),
        ("data/x.py", "from trl import SFTTrainer", False),
        ("data/x.py", "from .. import engine", False),
        ("layout/x.py", "from trl.errors import BatchError", True),
        ("errors.py", "from .layout import order", False),
        ("cli/x.py", "from ..trainers.sft import SFTTrainer", True),
    ],
)
def test_the_test(file, line, allowed):
    assert (violations(ROOT / file, line) == []) is allowed
