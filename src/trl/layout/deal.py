"""Dealing the rows of a step to microbatches, and microbatches to ranks.

Rule 2 of the contract. Any dealing gives the same result, so rows are dealt for speed. How rows are *cut* into
microbatches depends on the step's rows, the number of microbatches of the whole job and their size, and never on the
number
of ranks: layouts with the same per-device size compute the same microbatches, so they are equal under dropout
too (rule 5). Microbatch m belongs to accumulation step m // ranks of rank m % ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .plan import BatchPlan


def cut_by_length(lengths: Sequence[int], microbatches: int) -> list[list[int]]:
    """Like lengths together, longest first: least padding where rows are padded to the longest of their microbatch.

    Returns:
        for each microbatch the indices into `lengths`; sizes differ by at most one, empty lists where there are
        fewer rows than microbatches.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    size, extra = divmod(len(order), microbatches)
    cuts, first = [], 0
    for m in range(microbatches):
        last = first + size + (m < extra)
        cuts.append(order[first:last])
        first = last
    return cuts


def cut_by_tokens(lengths: Sequence[int], microbatches: int, most_rows: int) -> list[list[int]]:
    """Equal numbers of tokens: for layouts without padding.

    Longest processing time first (Graham 1969): each row, longest first, goes to the lightest microbatch that has
    room. With fewer rows than there is room for, this leaves some with fewer rows, never one above `most_rows`.
    """
    cuts: list[list[int]] = [[] for _ in range(microbatches)]
    lightest = [(0, m) for m in range(microbatches)]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, m = heapq.heappop(lightest)
        cuts[m].append(i)
        if len(cuts[m]) < most_rows:
            heapq.heappush(lightest, (tokens + lengths[i], m))
    return cuts


def deal(rows: Sequence[int], lengths: Sequence[int], plan: BatchPlan, *, padded: bool) -> list[list[int]]:
    """The microbatches of one step.

    Args:
        rows: row numbers of the step, at most `plan.global_batch_size`.
        lengths: tokens of each of them, in the same order.
        plan: the batch plan.
        padded: whether a microbatch is padded to its longest row.

    Returns:
        `plan.microbatches` lists of row numbers, largest first, so that a step that does not fit fails at its start.
    """
    if padded:
        cuts = cut_by_length(lengths, plan.microbatches)
    else:
        cuts = cut_by_tokens(lengths, plan.microbatches, plan.per_device)
        cuts.sort(key=lambda cut: (-sum(lengths[i] for i in cut), cut))
    return [[rows[i] for i in cut] for cut in cuts]


def microbatch_of(rank: int, accumulation_step: int, ranks: int) -> int:
    """The number of a microbatch within its step.

    Ranks take turns at the heavier end: microbatches come largest first, so on every other accumulation step the order
    of the ranks is reversed.
    """
    turn = rank if accumulation_step % 2 == 0 else ranks - 1 - rank
    return accumulation_step * ranks + turn
