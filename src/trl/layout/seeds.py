"""Randomness derived from (seed, purpose, index), never from a rank or a history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_MASK64 = (1 << 64) - 1


def derive_seed(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed that depends on its arguments alone: the same in every process and every layout.

    Args:
        seed: the run's seed.
        purpose: what it is for ("order", "dropout", ...); different purposes are independent streams.
        index: position in the stream, e.g. (step, microbatch).
    """
    key = repr((int(seed), purpose, tuple(int(i) for i in index))).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1


def mix64(value: int) -> int:
    """A 64-bit mixing function: two rounds of xor-shift and multiply (constants: Stafford's variant 13 of Murmur3)."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def row_hash(rows: Iterable[int]) -> int:
    """A hash of a multiset of row numbers as a signed 64-bit integer.

    It is a sum modulo 2^64, so the hashes of parts add up (also in int64 arithmetic, which wraps) to the hash of the
    whole, whatever the order: what ranks read can be checked by one all-reduce.
    """
    total = sum(mix64(row + 1) for row in rows) & _MASK64
    return total - (1 << 64) if total >> 63 else total
