"""Imports without the search for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """For the imports of torch and what comes with it.

    They make millions of objects that stay until the process ends. The collector looks through all of them again and
    again while they grow in number, later at every full collection (before the first step there is one), and at
    exit: together a quarter of the time that a run of one step takes. So it rests while they are made, and leaves
    them alone for ever after.
    """
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if active:
            gc.enable()
