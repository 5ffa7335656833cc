"""The order of rows: a keyed permutation of 0..n-1 that needs no memory and can be entered anywhere.

Rule 1 of the contract. Position p of epoch e is row `permute(p)` under a key made from (seed, e). Step k of an epoch
owns the positions [k*G, (k+1)*G), whatever the layout. Nothing is stored, so opening a data set of 10^9 rows at any
step on any of 10^4 ranks costs as much as opening one of 10 rows at its start.

The permutation is a balanced Feistel network over the smallest 2m-bit domain that holds n, walked along its cycle
until it lands inside 0..n-1 (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, method 2). The
domain is less than 4n, so a walk takes under four turns on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .seeds import derive_seed, mix64

_ROUNDS = 6


@dataclass(frozen=True)
class Permutation:
    """A permutation of range(n), a pure function of (n, key)."""

    n: int
    key: int

    @cached_property
    def _half_bits(self) -> int:
        return max(1, ((self.n - 1).bit_length() + 1) // 2)

    @cached_property
    def _round_keys(self) -> tuple[int, ...]:
        return tuple(derive_seed(self.key, "feistel", i) for i in range(_ROUNDS))

    def _encrypt(self, value: int) -> int:
        bits = self._half_bits
        mask = (1 << bits) - 1
        left, right = value >> bits, value & mask
        for key in self._round_keys:
            left, right = right, left ^ (mix64(right + key) & mask)
        return left << bits | right

    def __call__(self, position: int) -> int:
        """Row at `position`; O(1) on average."""
        if not 0 <= position < self.n:
            raise IndexError(f"position {position} is outside 0..{self.n - 1}")
        row = self._encrypt(position)
        while row >= self.n:
            row = self._encrypt(row)
        return row


@dataclass(frozen=True)
class Order:
    """Which rows step k of epoch e trains on, the same for every layout.

    Args:
        rows: rows in the data set.
        global_batch_size: rows of one optimizer step (G).
        seed: the run's data seed.
        shuffle: a new permutation each epoch; without it, the order of the data set.
        drop_last: leave out the last step of an epoch where it has fewer than G rows.
    """

    rows: int
    global_batch_size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch; the last one may hold fewer than G rows."""
        whole, rest = divmod(self.rows, self.global_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def step_rows(self, epoch: int, step: int) -> list[int]:
        """The rows of step `step` (counted within the epoch): at most G of them, each row once an epoch."""
        first = step * self.global_batch_size
        positions = range(first, min(first + self.global_batch_size, self.rows))
        if not self.shuffle:
            return list(positions)
        permute = Permutation(self.rows, derive_seed(self.seed, "order", epoch))
        return [permute(p) for p in positions]
