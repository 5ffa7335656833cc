"""The arguments of a command, read from the source of its dataclasses.

The source is parsed and never imported, so that help and checks need neither torch nor transformers. A field of ours
is described by the docstring under it, a field of transformers by its `metadata["help"]`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from trl.cli.commands import Command

_PACKAGE = Path(__file__).resolve().parents[1]
_SCALARS = ("bool", "int", "float", "str")


@dataclass(frozen=True)
class ValueType:
    """Which values an argument takes.

    Attributes:
        kinds: of "bool", "int", "float", "str", "list", "dict", those that are allowed.
        optional: whether None is.
        choices: the only values, if they are listed; empty for any.
        item: type of the members of a list.
        item_class: name of the dataclass whose fields are the keys of each member of a list, or "".
    """

    kinds: frozenset[str]
    optional: bool = False
    choices: tuple[object, ...] = ()
    item: ValueType | None = None
    item_class: str = ""


@dataclass(frozen=True)
class Field:
    """One argument.

    Attributes:
        name: with underscores.
        type: the values it takes.
        default: as in the source, or None where there is none.
        help: one or more sentences; may be empty.
        owner: the class that defines it, the most derived one if several do.
    """

    name: str
    type: ValueType
    default: str | None
    help: str
    owner: str


@dataclass(frozen=True)
class Schema:
    """All arguments of a command.

    Attributes:
        fields: {name: field}, in the order of the classes.
        members: {name of a list argument: fields of its members}.
    """

    fields: dict[str, Field]
    members: dict[str, dict[str, Field]]


def command_schema(command: Command) -> Schema:
    """Read the arguments of a command.

    Raises:
        RuntimeError: two classes of the command define the same argument.
    """
    fields: dict[str, Field] = {}
    members: dict[str, dict[str, Field]] = {}
    for entry in command.classes:
        path = _PACKAGE / entry.file
        for name, field in read_class(path, entry.name).items():
            if name in fields:
                raise RuntimeError(f"{entry.name}.{name} is already an argument of {fields[name].owner}")
            fields[name] = field
            if field.type.item_class:
                members[name] = read_class(path, field.type.item_class)
    return Schema(fields, members)


def read_class(path: Path, name: str) -> dict[str, Field]:
    """Fields of a dataclass and of its bases, by name; a derived class replaces what its base says.

    A field that is defined again without a description keeps that of its base.
    """
    module = _parse(path)
    definition = _class_named(module, name)
    if definition is None:
        raise RuntimeError(f"{path} has no class {name}")
    fields: dict[str, Field] = {}
    for base in reversed(definition.bases):
        found = _find_base(module, path, base)
        if found is not None:
            fields.update(read_class(*found))
    for field in _own_fields(definition):
        inherited = fields.pop(field.name, None)  # so that it moves to its place in the derived class
        if inherited is not None and not field.help:
            field = replace(field, help=inherited.help)
        fields[field.name] = field
    return fields


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _class_named(module: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _find_base(module: ast.Module, path: Path, base: ast.expr) -> tuple[Path, str] | None:
    """Where a base class is defined: in the same file, in this package or in transformers; None if elsewhere."""
    name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    if _class_named(module, name) is not None:
        return path, name
    if name == "TrainingArguments":
        return transformers_source("training_args.py"), name
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    source = _module_source(node, path)
                    return None if source is None else (source, alias.name)
    return None


def _module_source(node: ast.ImportFrom, path: Path) -> Path | None:
    """File of the module that a line of `path` imports from, if it is in this package."""
    parts = (node.module or "").split(".")
    if node.level:  # one dot is the folder of the file, each further dot one folder up
        return path.parents[node.level - 1].joinpath(*parts).with_suffix(".py")
    return _PACKAGE.joinpath(*parts[1:]).with_suffix(".py") if parts[0] == "trl" else None


def transformers_source(file: str) -> Path:
    """Path of a file of the installed transformers, which is not imported."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise RuntimeError("transformers is not installed")
    return Path(spec.origin).parent / file


def _own_fields(definition: ast.ClassDef) -> Iterator[Field]:
    constants = {
        target.id: node.value
        for node in ast.walk(definition)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    following: list[ast.stmt | None] = [*definition.body[1:], None]
    for node, after in zip(definition.body, following):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if ast.unparse(node.annotation).partition("[")[0].rpartition(".")[2] in ("ClassVar", "InitVar"):
            continue
        options = _field_options(node.value)
        if "init" in options and ast.unparse(options["init"]) == "False":
            continue
        metadata = _metadata(options)
        doc = after.value if isinstance(after, ast.Expr) else metadata.get("help")
        type = _read_type(node.annotation)
        choices = metadata.get("choices")
        if isinstance(choices, ast.List | ast.Tuple):  # not where they are computed
            type = replace(type, choices=tuple(ast.literal_eval(choices)))
        elif enumerated := _enumerated(node.annotation):
            type = replace(type, choices=enumerated)
        yield Field(node.target.id, type, _default(node.value, options, constants), _text(doc), definition.name)


def _field_options(value: ast.expr | None) -> dict[str, ast.expr]:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        return {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
    return {}


def _metadata(options: dict[str, ast.expr]) -> dict[str, ast.expr]:
    metadata = options.get("metadata")
    if not isinstance(metadata, ast.Dict):
        return {}
    pairs = zip(metadata.keys, metadata.values)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _text(node: ast.expr | None) -> str:
    """A description, as one line."""
    # argparse, for which transformers writes, takes %% for a percent sign.
    return " ".join(_strings(node).replace("%%", "%").split())


def _strings(node: ast.expr | None) -> str:
    """One string, or several that are added."""
    if isinstance(node, ast.BinOp):
        return _strings(node.left) + _strings(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _default(value: ast.expr | None, options: dict[str, ast.expr], constants: dict[str, ast.expr]) -> str | None:
    if options:
        if "default_factory" in options:
            factory = options["default_factory"]
            if isinstance(factory, ast.Lambda):
                return ast.unparse(factory.body)
            return {"list": "[]", "dict": "{}"}.get(ast.unparse(factory), ast.unparse(factory) + "()")
        value = options.get("default")
    if isinstance(value, ast.Name):
        value = constants.get(value.id, value)
    return None if value is None else ast.unparse(value)


def _read_type(node: ast.expr) -> ValueType:
    """A type from its annotation. A name that is not known here (an enumeration, say) is written as text."""
    if isinstance(node, ast.Constant):
        if node.value is None:
            return ValueType(frozenset(), optional=True)
        return _read_type(ast.parse(str(node.value), mode="eval").body)
    if isinstance(node, ast.BinOp):
        return _union([_read_type(node.left), _read_type(node.right)])
    if isinstance(node, ast.Subscript):
        members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        outer = ast.unparse(node.value).rpartition(".")[2]
        if outer == "Literal":
            choices = tuple(member.value for member in members if isinstance(member, ast.Constant))
            return ValueType(frozenset(type(choice).__name__ for choice in choices), choices=choices)
        if outer in ("Union", "Optional"):
            parts = [_read_type(member) for member in members]
            return _union([*parts, ValueType(frozenset(), optional=True)] if outer == "Optional" else parts)
        if outer == "Annotated":
            return _read_type(members[0])
        if outer.lower() in ("list", "tuple", "sequence", "set"):
            return ValueType(frozenset({"list"}), item=_read_type(members[0]), item_class=_class_name(members[0]))
        if outer.lower() in ("dict", "mapping"):
            return ValueType(frozenset({"dict"}))
    name = ast.unparse(node).rpartition(".")[2]
    if name == "Any":
        return ValueType(frozenset({*_SCALARS, "list", "dict"}), optional=True)
    if name in ("list", "dict"):
        return ValueType(frozenset({name}), item=ValueType(frozenset({"str"})) if name == "list" else None)
    return ValueType(frozenset({name if name in _SCALARS else "str"}))


def _enumerated(annotation: ast.expr) -> tuple[object, ...]:
    """The values of `SomeEnum | str`, where SomeEnum is one of transformers'; empty for other annotations."""
    if not isinstance(annotation, ast.BinOp):
        return ()
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    for source in ("trainer_utils.py", "training_args.py"):
        module = _parse(transformers_source(source))
        for name in names:
            definition = _class_named(module, name)
            if definition is not None and any("Enum" in ast.unparse(base) for base in definition.bases):
                values = [n.value.value for n in definition.body if isinstance(n, ast.Assign) and _is_text(n.value)]
                return tuple(values)
    return ()


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _class_name(node: ast.expr) -> str:
    """The name, where a member of a list is of a class of its own whose name says that it holds settings."""
    name = ast.unparse(node).strip("'\"")
    return name if name.endswith("Config") else ""


def _union(parts: list[ValueType]) -> ValueType:
    kinds = frozenset().union(*(part.kinds for part in parts))
    choices: tuple[object, ...] = ()
    # Choices only limit a union if every other part is None: `str | Literal[False]` takes any text.
    if all(part.choices or not part.kinds for part in parts):
        choices = tuple(choice for part in parts for choice in part.choices)
    lists = [part for part in parts if "list" in part.kinds]
    return ValueType(
        kinds,
        optional=any(part.optional for part in parts),
        choices=choices,
        item=lists[0].item if lists else None,
        item_class=lists[0].item_class if lists else "",
    )
