"""What prepared data depends on, as a hash that is the same in every process that has the same inputs.

The rows count by their content, not by where they come from or by how they were made: a data set in memory, the same
one on disk, and one that was mapped with a function nobody can hash are all treated alike.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import inspect
import json
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

ROWS_AT_A_TIME = 10_000


def combine(**parts: Any) -> str:
    """One hash of named parts that JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class _HashFile:
    """A file that keeps nothing but the hash of what was written to it."""

    closed = False

    def __init__(self) -> None:
        self.hash = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def dataset_fingerprint(dataset: Dataset) -> str:
    """A hash of the rows of a data set, column names and types included.

    Rows are hashed a fixed number at a time, each time gathered into new memory, so that neither Arrow's chunks, nor
    a selection of rows, nor what lies in the memory of a null show in the result.
    """
    view = dataset.with_format("arrow")
    sink = _HashFile()
    for first in range(0, len(view), ROWS_AT_A_TIME):
        table = view[first : first + ROWS_AT_A_TIME].combine_chunks().replace_schema_metadata(None)
        gathered = table.take(pa.array(range(len(table))))
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema) as stream:
            stream.write_table(gathered)
    return combine(rows=len(view), types=repr(dataset.features), content=sink.hash.hexdigest())


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of vocabulary, merges, normalisation, special tokens and chat template."""
    return combine(
        kind=type(tokenizer).__name__,
        model=hashlib.sha256(_tokenizer_model(tokenizer).encode()).hexdigest(),
        special={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        # says what the model of the tokenizer does not: which tokens are added to a text
        probe=tokenizer("A probe, 12  34\n", verbose=False)["input_ids"],
        template=tokenizer.chat_template,
    )


def _tokenizer_model(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    # left over from the last call; the next one sets them anew
    backend.no_truncation()
    backend.no_padding()
    return backend.to_str()


class UnstableError(Exception):
    """A function depends on something that has no hash which is equal in every process."""


def function_fingerprint(function: Callable[..., Any]) -> str:
    """A hash of what a function does: its bytecode, and that of what it refers to, with the values it has captured.

    Functions of installed packages count by their name.

    Raises:
        UnstableError: it refers to an object whose content we cannot hash.
    """
    return combine(function=list(_describe(function, {})))


def _describe(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """A flat description of a value, in parts that JSON can write."""
    if value is None or isinstance(value, bool | int | float | str):
        yield [type(value).__name__, value]
    elif isinstance(value, bytes):
        yield ["bytes", value.hex()]
    elif isinstance(value, types.ModuleType):
        yield ["module", value.__name__]
    elif isinstance(value, types.CodeType):
        yield ["code", value.co_code.hex(), list(value.co_names), list(value.co_varnames), value.co_flags]
        yield from _describe(value.co_consts, seen)
    elif id(value) in seen:
        yield ["seen"]
    else:
        seen[id(value)] = value  # (kept, so that no other object gets its id)
        yield from _describe_object(value, seen)


def _describe_object(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        yield [type(value).__name__, len(value)]
        for item in value:
            yield from _describe(item, seen)
    elif isinstance(value, set | frozenset):
        yield ["set", sorted(json.dumps(list(_describe(item, seen))) for item in value)]
    elif isinstance(value, Mapping):
        yield ["mapping", len(value)]
        for key, item in value.items():
            yield from _describe(key, seen)
            yield from _describe(item, seen)
    elif isinstance(value, functools.partial):
        yield from _describe((value.func, value.args, value.keywords), seen)
    elif inspect.ismethod(value):
        yield from _describe((value.__func__, value.__self__), seen)
    elif inspect.isbuiltin(value) or _is_installed(value):
        yield ["name", value.__module__, value.__qualname__]
    elif inspect.isfunction(value):
        yield from _describe_function(value, seen)
    elif inspect.isclass(value):
        yield ["class", *_source(value)]
    elif hasattr(value, "chat_template") and hasattr(value, "special_tokens_map"):
        yield ["tokenizer", tokenizer_fingerprint(value)]
    else:
        yield from _describe(_reduced(value), seen)


def _reduced(value: Any) -> tuple[Any, ...]:
    """An object as pickle would take it apart: how it is made, and its state."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        parts = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:
        kind = type(value)
        raise UnstableError(f"it refers to an object of type {kind.__module__}.{kind.__qualname__}") from None
    if isinstance(parts, str):  # the name of a global
        return (parts,)
    made, arguments, state, items, pairs = (*parts, None, None, None)[:5]
    return type(value), made, arguments, state, items and list(items), pairs and list(pairs)


def _describe_function(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[Any]:
    yield from _describe((function.__code__, function.__defaults__, function.__kwdefaults__), seen)
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    names = _names(function.__code__)
    used = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    yield from _describe((captured, used), seen)


def _names(code: types.CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_installed(value: Any) -> bool:
    """Whether a function or class comes with Python or with an installed package."""
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return False
    if value.__module__ == "builtins":
        return True
    try:
        file = inspect.getfile(value)
    except (TypeError, OSError):
        return False
    return file.startswith(tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")))


def _source(value: type) -> list[str]:
    try:
        return [value.__qualname__, inspect.getsource(value)]
    except (TypeError, OSError):
        raise UnstableError(f"the source of class {value.__qualname__} cannot be read") from None
