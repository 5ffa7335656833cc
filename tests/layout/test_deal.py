"""Dealing: every row once, never more rows than fit, the same cut for any number of ranks, and balanced."""

from hypothesis import given
from hypothesis import strategies as st

from trl.layout.deal import deal, microbatch_of
from trl.layout.plan import BatchPlan, make_plan

lengths = st.lists(st.integers(1, 200), min_size=1, max_size=64)


@given(lengths, st.integers(1, 9), st.integers(1, 8), st.booleans())
def test_every_row_once_and_no_microbatch_too_large(lengths, ranks, per_device, padded):
    plan = make_plan(world_size=ranks, global_batch_size=len(lengths), per_device=per_device)
    rows = list(range(100, 100 + len(lengths)))
    cuts = deal(rows, lengths, plan, padded=padded)
    assert len(cuts) == plan.microbatches
    assert sorted(r for cut in cuts for r in cut) == rows
    assert max(map(len, cuts)) <= plan.per_device


@given(lengths, st.booleans())
def test_layouts_with_the_same_per_device_size_cut_alike(lengths, padded):
    layouts = [BatchPlan(64, 8, 8, 1), BatchPlan(64, 8, 4, 2), BatchPlan(64, 8, 1, 8)]
    rows = list(range(len(lengths)))
    assert len({str(deal(rows, lengths, plan, padded=padded)) for plan in layouts}) == 1


@given(st.integers(1, 9), st.integers(1, 9))
def test_each_microbatch_belongs_to_one_rank(ranks, accumulation):
    owned = [microbatch_of(r, a, ranks) for a in range(accumulation) for r in range(ranks)]
    assert sorted(owned) == list(range(ranks * accumulation))


def test_without_padding_microbatches_have_like_tokens():
    lengths = [200] * 4 + [20] * 28
    plan = BatchPlan(32, 8, 1, 4)
    tokens = [sum(lengths[r] for r in cut) for cut in deal(range(32), lengths, plan, padded=False)]
    assert max(tokens) - min(tokens) <= 20  # dealt in order it would be 1,680 against 160


def test_with_padding_like_lengths_lie_together():
    lengths = [200, 10] * 8
    plan = BatchPlan(16, 8, 2, 1)
    cuts = deal(range(16), lengths, plan, padded=True)
    assert [{lengths[r] for r in cut} for cut in cuts] == [{200}, {10}]
