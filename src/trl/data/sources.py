"""Where rows come from: a file, a folder or the hub, by name.

`datasets` does the loading. Only where it fails are the files read again, line by line, to say which line is wrong.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import datasets
from datasets import Dataset, DatasetDict, IterableDataset

from trl.data.origin import mark_origin
from trl.data.scan import BUILDERS, explain_failure
from trl.errors import DataError

AnyDataset: TypeAlias = Dataset | IterableDataset

# The names under which files of a folder count as one of the usual splits.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def load_dataset_source(
    name: str, *, config: str | None = None, split: str = "train", streaming: bool = False
) -> AnyDataset:
    """One split of a data set.

    Args:
        name: a .json, .jsonl, .parquet or .csv file; a folder of such files; a folder of `save_to_disk`; or the name
            of a data set on the hub. In a folder, files named like a split (train*.jsonl, test-00001.parquet) are
            that split; without such names, every file is "train".
        config: the configuration of a data set on the hub.
        split: the split, with a slice if wanted: "train[:10%]".
        streaming: read rows when they are asked for.

    Raises:
        DataError: there is no such file, split or data set, or a file is broken: with its name and line.
    """
    loaded = _load(name, config, split, streaming)
    whole = not streaming and "[" not in split  # (a slice does not know where in the file it begins)
    return mark_origin(loaded, [(name, len(loaded) if whole else 0)])


def _load(name: str, config: str | None, split: str, streaming: bool) -> AnyDataset:
    path = Path(name).expanduser()
    if not path.exists():
        if _looks_like_a_path(name):
            raise missing_path(path)
        return load_hub(name, split, streaming, name=config)
    if config is not None:
        raise DataError(
            f"{name} is a local path, which has no configuration {config!r}",
            fix="drop dataset_config, or name a data set on the hub",
        )
    if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
        return _load_saved(path, split, streaming)
    files = _files_of_split(path, split) if path.is_dir() else [path]
    if path.is_file() and _base(split) != "train":
        raise _missing_split(str(path), split, ["train"], "a single file is the split 'train'")
    return load_files(files, split, streaming)


def load_dataset_dict(
    name: str,
    *,
    config: str | None = None,
    train_split: str = "train",
    test_split: str | None = "test",
    streaming: bool = False,
) -> dict[str, AnyDataset]:
    """The training split, and the test split where the data set has one, under their own names.

    Raises:
        DataError: as `load_dataset_source`, except that a missing test split is left out.
    """
    splits = {train_split: load_dataset_source(name, config=config, split=train_split, streaming=streaming)}
    if test_split is not None and test_split != train_split:
        with suppress(MissingSplitError):
            splits[test_split] = load_dataset_source(name, config=config, split=test_split, streaming=streaming)
    return splits


def as_dataset(rows: Any, source: str) -> Any:
    """Rows as users pass them: a `datasets` object as it is, a list of dictionaries as one.

    Raises:
        DataError: several splits at once, or something that is no set of rows.
    """
    if isinstance(rows, dict):
        splits = ", ".join(map(repr, rows))
        one = next(iter(rows), "train")
        raise DataError(f"{source} holds several splits: {splits}", fix=f"pass one of them, as in rows[{one!r}]")
    if isinstance(rows, list | tuple) and rows and all(isinstance(row, Mapping) for row in rows):
        return Dataset.from_list([dict(row) for row in rows])
    if not isinstance(rows, Dataset | IterableDataset):
        raise DataError(
            f"{source} is a {type(rows).__name__}, not a set of rows",
            fix="pass a Dataset or an IterableDataset, such as Dataset.from_list(rows) or Dataset.from_generator(f)",
        )
    return rows


class MissingSplitError(DataError):
    """A data set does not have the split that was asked for."""


def _base(split: str) -> str:
    """The split's name without a slice: train[:10%] -> train."""
    return split.partition("[")[0]


def _missing_split(name: str, split: str, found: Sequence[str], why: str = "") -> MissingSplitError:
    return MissingSplitError(
        f"{name} has no split {_base(split)!r}", why, f"the splits found are {', '.join(map(repr, found)) or 'none'}"
    )


# ------------------------------------------------------------------------------------------------------- local files


def _looks_like_a_path(name: str) -> bool:
    """A hub name is `name` or `owner/name`, and does not end like one of our files."""
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or name.count("/") > 1
        or Path(name).suffix.lower() in {*BUILDERS, ".txt", ".gz", ".zst", ".zip", ".arrow"}
    )


def missing_path(path: Path) -> DataError:
    parent = path.parent
    if not parent.is_dir():
        return DataError(f"there is no file {path}", f"the folder {parent} does not exist")
    near = difflib.get_close_matches(path.name, sorted(p.name for p in parent.iterdir()), n=1)
    return DataError(f"there is no file {path}", fix=f"did you mean {parent / near[0]}?" if near else "")


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in BUILDERS and p.is_file())
    if not files:
        raise DataError(f"{folder} holds no file that can be read", fix=f"files may end in {', '.join(BUILDERS)}")
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file), []).append(file)
    wanted = _base(split)
    named = [file for file in files if _named_like(file, wanted)]
    chosen = named or by_split.get(_canonical(wanted), [])
    if not chosen and wanted == "train":
        chosen = by_split.get("", [])  # files that are named like no split
    if not chosen:
        found = ["train" if found == "" else found for found in by_split]
        raise _missing_split(str(folder), split, sorted(set(found)), f"its files are {_names(files)}")
    kinds = {BUILDERS[file.suffix.lower()] for file in chosen}
    if len(kinds) > 1:
        raise DataError(
            f"{folder}: the files of split {wanted!r} are of different kinds ({', '.join(sorted(kinds))})",
            f"they are {_names(chosen)}",
            "keep each kind in a folder of its own, and mix them with `datasets:` in the configuration file",
        )
    return chosen


def _names(files: Sequence[Path]) -> str:
    names = [file.name for file in files[:5]]
    return ", ".join(names) + (f" and {len(files) - 5} more" if len(files) > 5 else "")


def _named_like(file: Path, name: str) -> bool:
    return re.match(rf"{re.escape(name)}(?![a-z])", file.stem, re.IGNORECASE) is not None


def _split_of(file: Path) -> str:
    """The usual split whose name a file has, or ""."""
    return next((split for split, names in SPLIT_NAMES.items() if any(_named_like(file, n) for n in names)), "")


def _canonical(name: str) -> str:
    return next((split for split, names in SPLIT_NAMES.items() if name in names), name)


def load_files(files: Sequence[Path], split: str = "train", streaming: bool = False) -> AnyDataset:
    """Local files of one kind as one split.

    Raises:
        DataError: naming the file and, where it is a line, the line.
    """
    for file in files:
        if file.suffix.lower() not in BUILDERS:
            raise DataError(
                f"{file} is of no kind that can be read", fix=f"the name must end in one of {', '.join(BUILDERS)}"
            )
        if not file.stat().st_size:
            raise DataError(f"{file} is empty")
    data_files = {_base(split): [glob.escape(str(file.resolve())) for file in files]}
    try:
        with quiet():
            kind = BUILDERS[files[0].suffix.lower()]
            loaded = datasets.load_dataset(kind, data_files=data_files, split=split, streaming=streaming)
            if streaming:
                next(iter(loaded))  # a fault near the beginning shows now
            return cast(AnyDataset, loaded)
    except Exception as error:
        raise explain_failure(files, error) from error


def _load_saved(path: Path, split: str, streaming: bool) -> AnyDataset:
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"{path} looks like a saved data set but cannot be loaded", innermost(error)) from error
    if isinstance(saved, DatasetDict):
        if _base(split) not in saved:
            raise _missing_split(str(path), split, list(saved))
        saved = saved[_base(split)]
    elif _base(split) != "train":
        raise _missing_split(str(path), split, ["train"], "it was saved without splits")
    if "[" in split:
        raise DataError(f"{path}: a saved data set cannot be sliced ({split!r})", fix="name the whole split")
    return saved.to_iterable_dataset() if streaming else saved


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars where there is no terminal, and no log lines about what we are going to explain."""
    bars = datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def innermost(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ----------------------------------------------------------------------------------------------------------- the hub


def load_hub(path: str, split: str, streaming: bool, **where: Any) -> AnyDataset:
    if path.count("/") <= 1 and not _cached(path):
        _require_hub(path)
    try:
        with quiet():
            return cast(AnyDataset, datasets.load_dataset(path, split=split, streaming=streaming, **where))
    except Exception as error:
        text = str(error).strip()
        found = re.search(r"Unknown split .*?Should be one of (\[.*?\])", text, re.DOTALL)
        if found or "Bad split" in text:
            splits = re.findall(r"'([^']+)'", found[1]) if found else re.findall(r"'([^']+)'", text.partition("[")[2])
            raise _missing_split(path, split, splits) from error
        raise DataError(
            f"the data set {path!r} cannot be loaded",
            f"it is no local file or folder, and of the hub: {type(error).__name__}: {text.partition(chr(10))[0]}",
            "check the name, or give the path of a local file",
        ) from error


def _cached(path: str) -> bool:
    return (Path(datasets.config.HF_DATASETS_CACHE) / path.replace("/", "___").lower()).exists() or (
        Path(datasets.config.HF_DATASETS_CACHE) / path.replace("/", "___")
    ).exists()


def _require_hub(path: str) -> None:
    """Say at once that there is no network, instead of after half a minute of retries."""
    why = ""
    if datasets.config.HF_HUB_OFFLINE:
        why = "the hub may not be asked: HF_HUB_OFFLINE is set"
    elif not any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")):
        host = urlsplit(datasets.config.HF_ENDPOINT).hostname or "huggingface.co"
        try:
            socket.getaddrinfo(host, 443)
        except OSError as error:
            why = f"the hub cannot be reached: {host}: {error.strerror or error}"
    if why:
        raise DataError(
            f"{path!r} is no file or folder here ({Path.cwd()}), nor a data set in the cache",
            why,
            "check the path, or load the data set once where there is a network",
        )
