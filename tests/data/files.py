"""Data files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

ROWS = [{"text": "a", "id": 1}, {"text": "b", "id": 2}]


def write_rows(path: Path, rows: list[dict[str, Any]] = ROWS) -> str:
    """Write rows as the kind of file that the name says; returns the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(str(path))
    elif path.suffix == ".csv":
        Dataset.from_list(rows).to_pandas().to_csv(path, index=False)  # type: ignore[union-attr]
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
