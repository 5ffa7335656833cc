"""The batch plan: whatever is missing is solved for, and contradictions are told with their arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl.errors import BatchError
from trl.layout.plan import make_plan

numbers = st.integers(1, 40)


@pytest.mark.parametrize(
    ("given", "per_device", "accumulation"),
    [
        ({"world_size": 1, "global_batch_size": 32}, 32, 1),
        ({"world_size": 8, "global_batch_size": 32}, 4, 1),
        ({"world_size": 1, "global_batch_size": 32, "per_device": 4}, 4, 8),
        ({"world_size": 8, "global_batch_size": 32, "per_device": 4}, 4, 1),
        ({"world_size": 3, "global_batch_size": 32, "per_device": 4}, 4, 3),
        ({"world_size": 2, "global_batch_size": 32, "accumulation": 4}, 4, 4),
        ({"world_size": 5, "global_batch_size": 48}, 10, 1),
        ({"world_size": 64, "global_batch_size": 48}, 1, 1),
        ({"world_size": 4, "global_batch_size": 8, "sequence_parallel": 2}, 4, 1),
    ],
)
def test_solved_for(given, per_device, accumulation):
    plan = make_plan(**given)
    assert (plan.per_device, plan.accumulation) == (per_device, accumulation)
    assert plan.global_batch_size == given["global_batch_size"]


def test_without_a_global_batch_the_three_numbers_define_it():
    assert make_plan(world_size=8, per_device=4).global_batch_size == 32
    assert make_plan(world_size=2, per_device=4, accumulation=3).global_batch_size == 24
    assert make_plan(world_size=1).global_batch_size == 8


def test_a_contradiction_writes_out_the_product():
    with pytest.raises(BatchError) as error:
        make_plan(world_size=3, global_batch_size=16, per_device=4, accumulation=2)
    assert "global_batch_size 16 is not" in str(error.value)
    assert "4 x gradient_accumulation_steps 2 x 3 data-parallel ranks = 24" in str(error.value)


@pytest.mark.parametrize(
    "name", ["world_size", "global_batch_size", "per_device", "accumulation", "sequence_parallel"]
)
def test_zero_is_refused(name):
    with pytest.raises(BatchError, match="is 0"):
        make_plan(**{"world_size": 1, "sequence_parallel": 1, name: 0})


def test_sequence_parallel_must_divide_the_world():
    with pytest.raises(BatchError, match="does not divide the number of processes, 6"):
        make_plan(world_size=6, sequence_parallel=4)


@given(numbers, numbers, st.none() | numbers)
def test_every_plan_has_room_for_its_batch_and_no_idle_accumulation(world, size, per_device):
    plan = make_plan(world_size=world, global_batch_size=size, per_device=per_device)
    assert plan.per_device * plan.microbatches >= size
    assert plan.per_device * (plan.accumulation - 1) * plan.data_ranks < size
