"""Several data sets as one: the `datasets:` of a configuration file."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from datasets import (
    DatasetDict,
    IterableDataset,
    IterableDatasetDict,
    Value,
    concatenate_datasets,
    interleave_datasets,
    load_dataset,
)

from trl.data.origin import mark_origin, origin
from trl.data.scan import BUILDERS
from trl.data.sources import AnyDataset, innermost, load_dataset_source, load_files, load_hub, missing_path, quiet
from trl.errors import ConfigError, DataError


@dataclass
class DatasetConfig:
    """One data set of a mixture."""

    path: str
    """File, folder or hub name; or a kind of file ("json", "csv", "parquet", "text") with `data_files`."""
    name: str | None = None
    """The configuration of a data set on the hub."""
    data_dir: str | None = None
    """The folder of the files within the data set."""
    data_files: str | list[str] | dict[str, str] | None = None
    """The files within the data set, or local files."""
    split: str = "train"
    """The split."""
    columns: list[str] | None = None
    """The columns to keep; all unless given."""
    fraction: float | None = None
    """The share of the rows to take, evenly spaced; all unless given."""

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction {self.fraction} of {self.path} is not a share", fix="use a number in (0, 1]")


@dataclass
class DatasetMixtureConfig:
    """Several data sets as one."""

    datasets: list[DatasetConfig] = field(default_factory=list)
    """The data sets; each a mapping with the fields of `DatasetConfig`."""
    streaming: bool = False
    """Read rows when they are asked for."""
    test_split_size: float | None = None
    """The share (below 1) or number of rows that is kept apart as "test"; none unless given."""

    def __post_init__(self) -> None:
        self.datasets = [_dataset_config(entry) for entry in self.datasets]
        if self.streaming and self.test_split_size is not None:
            raise ConfigError(
                "test_split_size needs the number of rows, which a stream does not know",
                fix="set streaming=False, or give a test data set",
            )


def _dataset_config(entry: DatasetConfig | Mapping[str, Any]) -> DatasetConfig:
    if isinstance(entry, DatasetConfig):
        return entry
    known = set(DatasetConfig.__dataclass_fields__)
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(
                f"`datasets:` has an unknown key {key!r}",
                f"the keys are {', '.join(DatasetConfig.__dataclass_fields__)}",
                f"did you mean {near[0]!r}?" if near else "",
            )
    if "path" not in entry:
        raise ConfigError(f"an entry of `datasets:` has no 'path': {dict(entry)}")
    return DatasetConfig(**entry)


def get_dataset(mixture_config: DatasetMixtureConfig) -> DatasetDict | IterableDatasetDict:
    """The mixture under "train", and under "test" what `test_split_size` keeps apart.

    Streams alternate row by row until each has ended; data sets are put one after another (training shuffles them).
    """
    combined = mix_datasets(mixture_config)
    if isinstance(combined, IterableDataset):
        return IterableDatasetDict({"train": combined})
    if mixture_config.test_split_size is None:
        return DatasetDict({"train": combined})
    # A fixed seed: every process has to keep the same rows apart.
    return combined.train_test_split(test_size=mixture_config.test_split_size, seed=0)


def mix_datasets(mixture: DatasetMixtureConfig) -> AnyDataset:
    """All data sets of the mixture as one, columns that a data set lacks being null."""
    if not mixture.datasets:
        raise ConfigError("the mixture has no data sets", fix="list at least one under `datasets:`")
    parts: list[Any] = [_load_entry(entry, mixture.streaming) for entry in mixture.datasets]
    if len(parts) == 1:
        return parts[0]
    origins = [place for part in parts for place in origin(part)]
    try:
        if mixture.streaming:
            mixed = interleave_datasets(parts, stopping_strategy="all_exhausted_without_replacement")
        else:
            mixed = concatenate_datasets(parts)
        return mark_origin(mixed, origins)
    except Exception as error:
        raise DataError(
            "the data sets of the mixture do not fit together",
            _conflict(mixture.datasets, parts) or innermost(error),
            "keep the columns that they share (`columns:`), or bring them to the same type",
        ) from error


def _conflict(entries: Sequence[DatasetConfig], parts: Sequence[AnyDataset]) -> str:
    """The first column that has two types, and where."""
    first: dict[str, tuple[str, Any]] = {}
    for entry, part in zip(entries, parts):
        for column, kind in (part.features or {}).items():
            path, known = first.setdefault(column, (entry.path, kind))
            if known != kind:
                return f"column {column!r} is {_short(known)} in {path} and {_short(kind)} in {entry.path}"
    return ""


def _short(kind: Any) -> str:
    text = str(kind)
    return text if len(text) < 100 else text[:97] + "..."


def _load_entry(entry: DatasetConfig, streaming: bool) -> AnyDataset:
    part = _load_by_config(entry, streaming)
    if entry.columns is not None:
        known = part.column_names
        missing = [column for column in entry.columns if known is not None and column not in known]
        if missing:
            raise DataError(
                f"{entry.path} has no column {missing[0]!r}",
                f"the columns found are {', '.join(map(repr, known or []))}",
            )
        part = part.select_columns(entry.columns)
    for column, kind in (part.features or {}).items():
        if kind == Value("large_string"):  # text from CSV: the same as other text, but not to `datasets`
            with quiet():
                part = part.cast_column(column, Value("string"))
    return part if entry.fraction is None else _evenly(part, entry.fraction)


def _load_by_config(entry: DatasetConfig, streaming: bool) -> AnyDataset:
    if entry.data_files is None and entry.data_dir is None:
        return load_dataset_source(entry.path, config=entry.name, split=entry.split, streaming=streaming)
    loaded = _load_by_files(entry, streaming)
    name = f"{entry.path} {entry.data_files or entry.data_dir}"
    return mark_origin(loaded, [(name, 0 if isinstance(loaded, IterableDataset) else len(loaded))])


def _load_by_files(entry: DatasetConfig, streaming: bool) -> AnyDataset:
    if entry.path in BUILDERS.values() and isinstance(entry.data_files, str | list) and entry.data_dir is None:
        listed = [entry.data_files] if isinstance(entry.data_files, str) else entry.data_files
        files = [Path(path) for pattern in listed for path in sorted(glob.glob(pattern)) or [pattern]]
        for file in files:
            if not file.is_file():
                raise missing_path(file)
        return load_files(files, entry.split, streaming)
    where = {"name": entry.name, "data_dir": entry.data_dir, "data_files": entry.data_files}
    local = entry.path in (*BUILDERS.values(), "text") or Path(entry.path).exists()
    if local:
        return _load_local_by_datasets(entry, streaming, where)
    return load_hub(entry.path, entry.split, streaming, **where)


def _load_local_by_datasets(entry: DatasetConfig, streaming: bool, where: dict[str, Any]) -> AnyDataset:
    try:
        with quiet():
            loaded = load_dataset(entry.path, split=entry.split, streaming=streaming, **where)
    except Exception as error:
        raise DataError(f"{entry.path} ({where}) cannot be loaded", innermost(error)) from error
    return cast(AnyDataset, loaded)


def _evenly(part: AnyDataset, fraction: float) -> AnyDataset:
    """Every row i at which floor((i + 1) * fraction) steps up: evenly spaced, and the same in every process."""
    if isinstance(part, IterableDataset):
        return part.filter(lambda _, i: int((i + 1) * fraction) > int(i * fraction), with_indices=True)
    return part.select([i for i in range(len(part)) if int((i + 1) * fraction) > int(i * fraction)])
