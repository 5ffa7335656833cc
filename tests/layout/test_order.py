"""The order of rows: a permutation, without memory, the same for every layout."""

import itertools
import time

import pytest

from trl.layout.order import Order, Permutation
from trl.layout.seeds import derive_seed


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 203, 1000, 4097])
def test_every_row_once(n):
    permute = Permutation(n, key=7)
    assert sorted(permute(p) for p in range(n)) == list(range(n))


def test_a_position_outside_is_an_error():
    with pytest.raises(IndexError, match=r"position 5 is outside 0\.\.4"):
        Permutation(5, key=0)(5)


def test_keys_give_unrelated_orders():
    n = 1000
    a, b = ([Permutation(n, key)(p) for p in range(n)] for key in (1, 2))
    # Two independent permutations agree in about one position (Poisson, mean 1).
    assert sum(x == y for x, y in zip(a, b, strict=True)) < 10


def test_the_order_looks_random():
    """Every row is equally likely to come first; neighbours do not stay neighbours."""
    n, draws = 10, 4000
    counts = [0] * n
    for key in range(draws):
        counts[Permutation(n, derive_seed(key, "test"))(0)] += 1
    chi_square = sum((c - draws / n) ** 2 / (draws / n) for c in counts)
    assert chi_square < 27.9  # 99.9 % quantile of 9 degrees of freedom
    rows = [Permutation(10_000, 3)(p) for p in range(10_000)]
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(rows)) < 15


def test_an_epoch_of_a_ragged_size():
    order = Order(rows=203, global_batch_size=32, seed=1)
    assert order.steps_per_epoch == 7
    steps = [order.step_rows(0, k) for k in range(7)]
    assert [len(s) for s in steps] == [32] * 6 + [11]
    assert sorted(r for s in steps for r in s) == list(range(203))
    assert order.step_rows(1, 0) != order.step_rows(0, 0)
    assert order.step_rows(0, 3) == steps[3]  # entered anywhere


def test_without_shuffling_and_dropping_the_last():
    order = Order(rows=10, global_batch_size=4, seed=1, shuffle=False, drop_last=True)
    assert [order.step_rows(5, k) for k in range(order.steps_per_epoch)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_billion_rows_open_at_any_step():
    started = time.perf_counter()
    order = Order(rows=10**9, global_batch_size=1024, seed=0)
    rows = order.step_rows(3, 900_000)
    assert len(set(rows)) == 1024
    assert time.perf_counter() - started < 1  # takes about 10 ms; a table of 10^9 rows takes minutes
