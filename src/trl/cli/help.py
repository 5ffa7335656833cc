"""`trl COMMAND --help`: what matters first, what is inherited last."""

from __future__ import annotations

import shutil
import textwrap

from trl.cli.commands import Command
from trl.cli.schema import Field, Schema, ValueType, command_schema
from trl.launch.flags import LAUNCH_FLAGS, LaunchFlag

_CONFIG_HELP = "YAML file with any of these arguments, one `name: value` a line. The command line wins."
# Headings for classes that a configuration derives from; the others have theirs in the table of commands.
_BASE_TITLES = {"TrainerConfig": "Batch, devices and memory"}
_UPSTREAM = "TrainingArguments"
_INDENT = 2
_GAP = 2


def command_help(command: Command, width: int | None = None) -> str:
    """The help of a command as plain text.

    Args:
        command: the command.
        width: columns; those of the terminal if None, between 80 and 120.
    """
    if width is None:
        width = min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)
    schema = command_schema(command)
    parts = [
        textwrap.fill(
            f"usage: trl {command.name} {command.example} [arguments]",
            width,
            subsequent_indent="           ",
            break_on_hyphens=False,
        ),
        "\n".join(textwrap.wrap(command.summary, width)),
        _section("What matters most", _first(command, schema), width),
    ]
    shown = set(command.first)
    for title, fields in _groups(command, schema):
        rows = [_field_row(field) for field in fields if field.name not in shown]
        parts.append(_section(title, rows, width))
    launch = [_flag_row(flag) for flag in LAUNCH_FLAGS.values() if flag.name not in shown]
    parts.append(_section("Launch, as for torchrun (- or _, = or space)", launch, width))
    upstream = [field for field in schema.fields.values() if field.owner == _UPSTREAM and field.name not in shown]
    parts.append(_short_section("From transformers.TrainingArguments, which describes them in full", upstream, width))
    return "\n\n".join(part for part in parts if part)


def _first(command: Command, schema: Schema) -> list[tuple[str, str]]:
    rows = []
    for name in command.first:
        if name == "config":
            rows.append(("--config FILE", _CONFIG_HELP))
        elif name in LAUNCH_FLAGS:
            rows.append(_flag_row(LAUNCH_FLAGS[name]))
        else:
            rows.append(_field_row(schema.fields[name]))
    return rows


def _groups(command: Command, schema: Schema) -> list[tuple[str, list[Field]]]:
    """The fields of ours by the class that defines them, the command's own first."""
    titles = {entry.name: entry.title for entry in command.classes}
    own, *rest = titles
    owners = dict.fromkeys(field.owner for field in schema.fields.values())
    bases = [owner for owner in owners if owner not in titles and owner != _UPSTREAM]
    return [
        (titles.get(owner, _BASE_TITLES.get(owner, owner)), [f for f in schema.fields.values() if f.owner == owner])
        for owner in [own, *bases, *rest]
    ]


def _section(title: str, rows: list[tuple[str, str]], width: int) -> str:
    if not rows:
        return ""
    # The names have a column of their own; a longer one has its text in the line below.
    column = min(max(len(name) for name, _ in rows), width * 2 // 5) + _INDENT + _GAP
    lines = [f"{title}:"]
    for name, text in rows:
        wrapped = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
        head = " " * _INDENT + name
        if len(head) + _GAP > column:
            lines.append(head)
        else:
            lines.append((head.ljust(column) + wrapped.pop(0)).rstrip())
        lines += [" " * column + line for line in wrapped]
    return "\n".join(lines)


def _short_section(title: str, fields: list[Field], width: int) -> str:
    """One line for each: as much of the first sentence as fits, and the default."""
    column = width * 2 // 5
    lines = [f"{title}:"]
    for field in fields:
        head = " " * _INDENT + _name(field)
        if field.type.choices and len(head) + _GAP > column:
            head = f"{' ' * _INDENT}--{field.name} TEXT"
        head = head.ljust(column) if len(head) + _GAP <= column else head + " " * _GAP
        default = _shown_default(field)
        room = width - len(head) - (len(default) + 1 if default else 0)
        text = textwrap.shorten(field.help.split(". ")[0].rstrip("."), max(room, 3), placeholder="...")
        lines.append(f"{head}{text} {default}".rstrip())
    return "\n".join(lines)


def _field_row(field: Field) -> tuple[str, str]:
    return _name(field), f"{field.help} {_shown_default(field)}".strip()


def _shown_default(field: Field) -> str:
    if field.default in (None, "None", "False", "''", "[]", "{}"):
        return ""
    text = str(field.default).strip("'\"")
    return f"[{text.lower() if text == 'True' else text}]"


def _name(field: Field) -> str:
    if field.type.item_class:
        return f"{field.name}: (in the YAML file)"
    if field.type.kinds == {"bool"}:
        return f"--[no_]{field.name}" if field.default == "True" else f"--{field.name}"
    return f"--{field.name} {_placeholder(field.type)}"


def _placeholder(type: ValueType) -> str:
    if type.choices:
        return "{" + ",".join(str(choice) for choice in type.choices) + "}"
    if "list" in type.kinds and "str" not in type.kinds and type.item is not None:
        return f"{_placeholder(type.item)} ..."
    for kind, word in (("str", "TEXT"), ("float", "NUMBER"), ("int", "INT"), ("dict", "JSON"), ("bool", "BOOL")):
        if kind in type.kinds and not (kind == "str" and "dict" in type.kinds):
            return word
    return "VALUE"


def _flag_row(flag: LaunchFlag) -> tuple[str, str]:
    names = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
    if flag.choices:
        return f"{names} {{{','.join(flag.choices)}}}", flag.help
    return names + {"switch": "", "int": " INT", "number": " NUMBER", "text": " TEXT"}[flag.type], flag.help
