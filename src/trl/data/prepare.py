"""A data set of rows -> a data set of token rows, once per file system.

The result lies in `<cache>/prepared/<fingerprint>/`; the fingerprint is the same in every process, so every process
knows where to look without talking to another. One takes the lock beside it and builds; the others wait on the lock,
for as long as it takes: no collective is pending that could time out. The folder is built under another name and
renamed when it is complete, so whatever has its name is whole; what a killed builder left is removed by the next.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.table import MemoryMappedTable
from filelock import FileLock, Timeout

from trl.data.early import check_early
from trl.data.fingerprint import (
    UnstableError,
    combine,
    dataset_fingerprint,
    function_fingerprint,
    tokenizer_fingerprint,
)
from trl.data.formats import Where, normalise_row, row_kind
from trl.data.origin import locator, origin_name
from trl.data.packing import Strategy, apply_plan, plan_packing
from trl.data.prompts import Note, RowOptions, TokenRow, tokenize_rows
from trl.data.workers import map_chunks
from trl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Log = Callable[[str], None]

VERSION = 1
"""Part of every fingerprint: to be raised whenever the same rows and options give other tokens."""

WAIT_SECONDS = 30.0
COLUMNS = {"input_ids", "labels", "completion_mask", "assistant_masks", "prompt", "completion", "messages"}
COLUMNS |= {"conversations", "system", "tools", "chat_template_kwargs"}
"""What a row's tokens may depend on, besides its text column."""


@dataclass(frozen=True)
class PrepareOptions(RowOptions):
    """How rows become token rows, and whether these are packed.

    Args:
        packing: the packing strategy; None: a row stays a row.
    """

    packing: Strategy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing is not None and self.max_length is None:
            raise ConfigError("packing needs to know how long a row is", fix="set max_length")

    @property
    def rows(self) -> RowOptions:
        """The options for one row: what a packing strategy cuts itself is not truncated before."""
        cuts = self.packing in ("bfd_split", "wrapped")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(RowOptions)}
        return RowOptions(**(fields | {"max_length": None if cuts else self.max_length}))


def default_cache_dir() -> Path:
    """`$TRL_CACHE`, else `$HF_HOME/trl`, else `~/.cache/trl`."""
    if "TRL_CACHE" in os.environ:
        return Path(os.environ["TRL_CACHE"])
    if "HF_HOME" in os.environ:
        return Path(os.environ["HF_HOME"]) / "trl"
    return Path("~/.cache/trl").expanduser()


def prepare(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: PrepareOptions,
    *,
    source: str,
    num_proc: int | None = None,
    cache_dir: Path | None = None,
    log: Log = print,
) -> Dataset:
    """Token rows of a data set, from the cache or built now by one process of those that ask for it.

    Args:
        dataset: rows of any kind that `formats` knows.
        source: what the data is called in messages, if it was not loaded by name (see `origin`).
        num_proc: worker processes; None or 1: this process alone.
        cache_dir: default_cache_dir() unless given. Processes that see the same folder share the work.
        log: takes lines for the user.

    Returns:
        A memory-mapped data set: `input_ids`, `labels` (int32 lists, not shifted, IGNORE where nothing is learnt),
        `length` (tokens), `row` (the row in `dataset`; the first document's if packed), and `seq_lengths` if packed.
        Rows without a token to learn are left out, and counted in a line to `log`.

    Raises:
        DataError: a row is malformed, or no row has a token to learn, or the cache cannot be written.
    """
    source = origin_name(dataset, source)
    check_columns(dataset.column_names, options, source)
    dataset = _needed_columns(dataset, options)
    job = _Job(dataset, tokenizer, options, source, locator(dataset, source), num_proc or 1, log)
    try:
        fingerprint = _fingerprint(dataset, tokenizer, options)
    except UnstableError as error:
        log(
            f"formatting_func cannot be recognised from one process to the next ({error}): every process prepares "
            "the data for itself, and does so again at the next launch"
        )
        folder = Path(tempfile.mkdtemp(prefix="trl-prepared-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _load(job.build(folder), f"private-{os.getpid()}-{time.time_ns()}", log)
    folder = (cache_dir or default_cache_dir()) / "prepared" / fingerprint
    if not folder.exists():
        _build_once(folder, job)
    return _load(folder, fingerprint, log)


def _fingerprint(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, options: PrepareOptions) -> str:
    import tokenizers
    import transformers

    plain = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    function = plain.pop("formatting_func")
    plain["chat_template_kwargs"] = json.dumps(plain["chat_template_kwargs"], sort_keys=True, default=str)
    return combine(
        version=[VERSION, transformers.__version__, tokenizers.__version__],
        options=plain,
        function=function and function_fingerprint(function),
        tokenizer=tokenizer_fingerprint(tokenizer),
        data=dataset_fingerprint(dataset),
    )


def check_columns(columns: Collection[str], options: RowOptions, source: str) -> None:
    """Refuse a data set without a usable column before anything else is done."""
    if options.formatting_func is None and row_kind(dict.fromkeys(columns, 0), options.dataset_text_field) is None:
        normalise_row(dict.fromkeys(columns, 0), Where(source, 0), options.dataset_text_field)


def _needed_columns(dataset: Dataset, options: RowOptions) -> Dataset:
    dataset = dataset.with_format(None)
    if options.formatting_func is not None:
        return dataset
    needed = {*COLUMNS, options.dataset_text_field}
    return dataset.select_columns([name for name in dataset.column_names if name in needed])


def _load(folder: Path, fingerprint: str, log: Log) -> Dataset:
    for line in json.loads((folder / "prepared.json").read_text())["report"]:
        log(line)
    return Dataset(MemoryMappedTable.from_file(str(folder / "rows.arrow")), fingerprint=fingerprint)


# ------------------------------------------------------------------------------------------- once per file system


def _build_once(folder: Path, job: _Job) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _waiting_lock(folder.with_suffix(".lock"), job.log):
            if folder.exists():
                return  # another process built it while this one waited
            for left_over in folder.parent.glob(f"{folder.name}.tmp-*"):
                shutil.rmtree(left_over)  # we hold the lock, so its builder is dead
            unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
            try:
                job.build(unfinished)
                unfinished.chmod(0o755)  # mkdtemp makes folders that only their owner may read
                unfinished.rename(folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    except OSError as error:
        raise DataError(
            f"prepared data cannot be written to {folder.parent}",
            str(error),
            "make room, or set TRL_CACHE to another folder (one that all processes of a node see)",
        ) from error


@contextmanager
def _waiting_lock(path: Path, log: Log) -> Iterator[None]:
    """Hold the file lock; a line every WAIT_SECONDS for as long as another process has it."""
    lock, started = FileLock(path, poll_interval=0.1), time.monotonic()
    while True:
        try:
            lock.acquire(timeout=WAIT_SECONDS)
            break
        except NotImplementedError:  # of the lock
            raise OSError("its file system has no file locks") from None
        except Timeout:
            log(f"waiting for another process to prepare the data ({time.monotonic() - started:.0f} s so far)")
    try:
        yield
    finally:
        lock.release()


# ------------------------------------------------------------------------------------------------------- building


class _Chunk(NamedTuple):
    """The token rows of consecutive rows that have something to learn."""

    table: pa.Table
    rows: int
    notes: Counter[Note]


class _Job(NamedTuple):
    dataset: Dataset
    tokenizer: PreTrainedTokenizerBase
    options: PrepareOptions
    source: str
    locate: Callable[[int], Where]
    num_proc: int
    log: Log

    def build(self, folder: Path) -> Path:
        """Write `rows.arrow` and `prepared.json` into the folder."""
        check_early(
            self.dataset, self.locate, None if self.options.formatting_func else self.options.dataset_text_field
        )
        notes: Counter[Note] = Counter()
        packing, limit = self.options.packing, self.options.max_length
        with _Progress(len(self.dataset), f"preparing {self.source}", self.log) as progress:
            chunks = self._chunks(notes, progress)
            if packing is None:
                kept = _write(folder / "rows.arrow", chunks)
            else:
                table = _spool(folder, chunks)
                kept = len(table)
        if not kept:
            raise self._nothing_to_learn()
        report = _report(notes, len(self.dataset), self.options)
        if packing is not None:
            assert limit is not None
            plan = plan_packing(table["length"].to_numpy(), limit, packing)
            _write(folder / "rows.arrow", apply_plan(table, plan))
            for spool in folder.glob("*.spool"):
                spool.unlink()
            fill = plan.length.sum() / (len(plan) * limit)
            report.append(f"packed {kept:,} rows into {len(plan):,} of {limit} tokens ({fill:.1%} full)")
        facts = {"source": self.source, "rows": len(self.dataset), "report": report}
        _write_text(folder / "prepared.json", json.dumps(facts, indent=1))
        return folder

    def _chunks(self, notes: Counter[Note], progress: _Progress) -> Iterator[pa.Table]:
        for chunk in map_chunks(self._tokenize, len(self.dataset), self.num_proc):
            notes.update(chunk.notes)
            progress.advance(chunk.rows)
            yield chunk.table

    def _tokenize(self, rows: range) -> _Chunk:
        columns = self.dataset[rows.start : rows.stop]
        examples = [dict(zip(columns, values)) for values in zip(*columns.values())]
        places = [self.locate(row) for row in rows]
        tokenised = tokenize_rows(examples, places, self.tokenizer, self.options.rows)
        kept = [(row, tokens) for row, tokens in zip(rows, tokenised) if Note.UNSUPERVISED not in tokens.note]
        notes = Counter(note for tokens in tokenised for note in tokens.note)
        return _Chunk(_table([row for row, _ in kept], [tokens for _, tokens in kept]), len(rows), notes)

    def _nothing_to_learn(self) -> DataError:
        if not len(self.dataset):
            return DataError(f"{self.source} has no rows")
        options = self.options
        masks = [name for name in ("completion_only_loss", "assistant_only_loss") if getattr(options, name)]
        return DataError(
            f"{self.source}: none of the {len(self.dataset)} rows has a token to learn",
            f"max_length={options.max_length}, truncation_mode={options.truncation_mode!r}"
            + "".join(f", {name}=True" for name in masks),
            "look at a few rows: are their texts empty? If they are only long, raise max_length or keep their end "
            "(truncation_mode='keep_end')",
        )


SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("length", pa.int32()),
        ("row", pa.int64()),
    ]
)


def _table(rows: list[int], tokens: list[TokenRow]) -> pa.Table:
    lengths = np.array([len(row.input_ids) for row in tokens], dtype=np.int32)
    borders = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    none = np.empty(0, dtype=np.int32)
    ids = np.concatenate([none, *(row.input_ids for row in tokens)])
    labels = np.concatenate([none, *(row.labels for row in tokens)])
    lists = [pa.ListArray.from_arrays(borders, pa.array(values)) for values in (ids, labels)]
    return pa.table([*lists, pa.array(lengths), pa.array(rows, pa.int64())], schema=SCHEMA)


def _write(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables to an Arrow stream; returns the number of rows."""
    rows = 0
    with path.open("wb") as file:
        first = next(tables, SCHEMA.empty_table())
        with pa.ipc.new_stream(file, first.schema) as stream:
            for table in chain([first], tables):
                stream.write_table(table)
                rows += len(table)
        file.flush()
        os.fsync(file.fileno())  # the rename must not come to the disk before the content
    return rows


def _spool(folder: Path, tables: Iterator[pa.Table]) -> pa.Table:
    """One table of all. Its tokens lie in files: packing takes documents from everywhere, and memory may not do."""
    names = ("input_ids", "labels")
    lengths, rows = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int64)]
    with ExitStack() as files:
        spools = {name: files.enter_context((folder / f"{name}.spool").open("wb")) for name in names}
        for table in tables:
            for name, file in spools.items():
                for chunk in table[name].chunks:
                    file.write(chunk.flatten().to_numpy())
            lengths.append(table["length"].to_numpy())
            rows.append(table["row"].to_numpy())
    length = np.concatenate(lengths)
    if not len(length):
        return SCHEMA.empty_table()
    borders = pa.array(np.concatenate([[0], np.cumsum(length, dtype=np.int64)]))
    flat = [np.memmap(folder / f"{name}.spool", dtype=np.int32, mode="r") for name in names]
    lists = [pa.LargeListArray.from_arrays(borders, pa.array(values)) for values in flat]
    return pa.table([*lists, pa.array(length), pa.array(np.concatenate(rows))], names=SCHEMA.names)


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _report(notes: Mapping[Note, int], rows: int, options: PrepareOptions) -> list[str]:
    """What the user should know about the rows, a line each."""
    report = []
    if truncated := notes.get(Note.TRUNCATED):
        report.append(f"{truncated:,} of {rows:,} rows were truncated to max_length={options.max_length}")
    if empty := notes.get(Note.UNSUPERVISED):
        report.append(
            f"warning: {empty:,} of {rows:,} rows have no supervised token after truncation to "
            f"max_length={options.max_length} and are left out"
        )
    if merged := notes.get(Note.BORDER_MERGED):
        report.append(
            f"warning: in {merged:,} of {rows:,} rows white space merges what the model is given and what it says "
            "into one token (a prompt that ends in a space, a reply that begins with one); the two were tokenised "
            "apart, as they are when the model is used"
        )
    return report


class _Progress:
    """A bar where stderr is a terminal, else a line every ten seconds."""

    SECONDS = 10.0

    def __init__(self, total: int, title: str, log: Log) -> None:
        self.total, self.title, self.log, self.done = total, title, log, 0
        self.bar: Any = None

    def __enter__(self) -> _Progress:
        self.started = self.said = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=self.total)
        return self

    def advance(self, rows: int) -> None:
        self.done += rows
        if self.bar is not None:
            self.bar.update(self.task, advance=rows)
        elif (now := time.monotonic()) - self.said >= self.SECONDS:
            self.said = now
            rate = self.done / (now - self.started)
            left = (self.total - self.done) / rate
            self.log(f"{self.title}: {self.done:,} of {self.total:,} rows, {rate:,.0f} rows/s, {left:.0f} s left")

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
