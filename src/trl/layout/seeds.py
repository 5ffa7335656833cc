"""Randomness derived from (seed, purpose, index), never from a rank or a history."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed that depends on its arguments alone: the same in every process and every layout.

    Args:
        seed: the run's seed.
        purpose: what it is for ("order", "dropout", ...); different purposes are independent streams.
        index: position in the stream, e.g. (step, microbatch).
    """
    key = repr((int(seed), purpose, tuple(int(i) for i in index))).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
