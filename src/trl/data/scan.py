"""Why a file could not be loaded: which line of it is wrong, and how."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trl.errors import DataError

BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""Endings of the files that can be read, and the loader of `datasets` for each."""

JSON_TYPES = {str: "text", bool: "true/false", int: "a number", float: "a number", list: "a list", dict: "an object"}


def explain_failure(files: Sequence[Path], error: BaseException) -> DataError:
    """The error to show when loading `files` failed with `error`: naming the file and line where one is found."""
    for file in files:
        kind = BUILDERS[file.suffix.lower()]
        found = _scan_parquet(file) if kind == "parquet" else _scan_csv(file) if kind == "csv" else _scan_json(file)
        if found is not None:
            return found
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    names = ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
    return DataError(f"{names} cannot be loaded", f"{type(error).__name__}: {str(error).strip()}")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line. Raises DataError at the first byte that is not UTF-8."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}, line {number}: not valid UTF-8",
                    f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line",
                    "save the file as UTF-8",
                ) from None


def _scan_json(file: Path) -> DataError | None:
    try:
        first = next((line for _, line in _lines(file) if line.strip()), "")
        if not first:
            return DataError(f"{file} has no rows", "it holds nothing but white space")
        if first.lstrip().startswith("["):
            return _scan_json_array(file)
        return _scan_json_lines(file)
    except DataError as error:
        return error


def _scan_json_array(file: Path) -> DataError | None:
    text = "".join(line for _, line in _lines(file))
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        return DataError(f"{file}, line {error.lineno}: broken JSON", f"{error.msg} at column {error.colno}")
    types: dict[str, tuple[str, int]] = {}
    for number, row in enumerate(rows):
        place = f"{file}, row {number} (counted from 0)"
        if not isinstance(row, dict):
            return DataError(f"{place}: is {_type(row)}, not an object")
        if (odd := _odd_column(row, number, types, "row")) is not None:
            return DataError(f"{place}, {odd}")
    return None if rows else DataError(f"{file} has no rows")


def _scan_json_lines(file: Path) -> DataError | None:
    types: dict[str, tuple[str, int]] = {}
    for number, line in _lines(file):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            row = json.loads(line.rstrip("\r\n"))
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            return DataError(f"{place}: half of a surrogate pair (\\ud800 to \\udfff), which is no character")
        except json.JSONDecodeError as error:
            return DataError(f"{place}: broken JSON", f"{error.msg} at column {error.colno}: {_excerpt(line, error)}")
        if not isinstance(row, dict):
            return DataError(f"{place}: is {_type(row)}, not an object", fix="write one JSON object per line")
        if (odd := _odd_column(row, number, types, "line")) is not None:
            return DataError(f"{place}, {odd}")
    return None


def _excerpt(line: str, error: json.JSONDecodeError) -> str:
    start = max(0, error.pos - 20)
    return repr(line.rstrip("\n")[start : error.pos + 20])


def _odd_column(row: dict[str, Any], number: int, types: dict[str, tuple[str, int]], unit: str) -> str | None:
    """A column whose type is not the one it had before."""
    for column, value in row.items():
        if value is None:
            continue
        known, since = types.setdefault(column, (_type(value), number))
        if known != _type(value):
            return f"column {column!r}: is {_type(value)}; it was {known} in {unit} {since}"
    return None


def _type(value: Any) -> str:
    return JSON_TYPES.get(type(value), "null")


def _scan_csv(file: Path) -> DataError | None:
    try:
        reader = csv.reader(line for _, line in _lines(file))
        header = next(reader, [])
        for fields in reader:
            if fields and len(fields) != len(header):
                return DataError(
                    f"{file}, line {reader.line_num}: has {len(fields)} fields, the header has {len(header)}",
                    f"the header is {', '.join(header)}",
                    'put fields with commas or line breaks in "quotes"',
                )
    except DataError as error:
        return error
    except csv.Error as error:
        return DataError(f"{file}, line {reader.line_num}: broken CSV", str(error))
    return None


def _scan_parquet(file: Path) -> DataError | None:
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        for group in range(table.num_row_groups):
            table.read_row_group(group)
    except Exception as error:
        return DataError(f"{file} is not a whole Parquet file", str(error).strip())
    return None
