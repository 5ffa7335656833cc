"""What a launcher leaves in the environment, read once and checked."""

import os

import pytest

from trl.errors import LaunchError
from trl.launch.environment import agent_reports, guess_process_info, is_launched, read_process_info

FULL = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
}


def without(*names, **changes):
    return {name: value for name, value in {**FULL, **changes}.items() if name not in names}


def test_nothing_set_is_a_single_process():
    info = read_process_info({})
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size, info.node_rank) == (0, 0, 1, 1, 0)
    assert info.launched_by == "nothing"
    assert not is_launched({})


def test_torchrun():
    info = read_process_info(FULL)
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size, info.node_rank) == (5, 1, 8, 4, 1)
    assert info.launched_by == "torchrun"
    assert info.label == f"rank 5 of 8 on {info.host}"
    assert is_launched(FULL)


@pytest.mark.parametrize(
    ("env", "launcher"),
    [({**FULL, "TRL_AGENT_PID": "1"}, "trl"), (without("TORCHELASTIC_RUN_ID"), "environment")],
)
def test_launched_by(env, launcher):
    assert read_process_info(env).launched_by == launcher


def test_what_may_be_missing():
    assert read_process_info({"RANK": "0", "WORLD_SIZE": "1"}).local_world_size == 1
    single_node = without("LOCAL_WORLD_SIZE", "GROUP_RANK", RANK="1")
    assert read_process_info(single_node).local_world_size == 8
    assert read_process_info(without("GROUP_RANK")).node_rank == 1
    deepspeed = without("LOCAL_WORLD_SIZE", "GROUP_RANK", LOCAL_SIZE="4")
    assert read_process_info(deepspeed).local_world_size == 4
    virtual = {**FULL, "LOCAL_RANK": "0"}
    assert read_process_info(virtual).local_rank == 0


@pytest.mark.parametrize(
    ("env", "variable"),
    [
        ({"WORLD_SIZE": "2"}, "RANK"),
        (without("WORLD_SIZE"), "WORLD_SIZE"),
        (without("LOCAL_RANK"), "LOCAL_RANK"),
        (without("LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE"),
        (without("MASTER_ADDR"), "MASTER_ADDR"),
        (without("MASTER_PORT"), "MASTER_PORT"),
        (without(MASTER_PORT="auto"), "MASTER_PORT"),
        (without(RANK="8"), "RANK"),
        (without(RANK="-1"), "RANK"),
        (without(RANK="one"), "RANK"),
        (without(LOCAL_RANK="4"), "LOCAL_RANK"),
        (without(LOCAL_WORLD_SIZE="16"), "LOCAL_WORLD_SIZE"),
        (without(RANK="0"), "LOCAL_RANK"),
    ],
)
def test_contradictions_name_the_variable(env, variable):
    with pytest.raises(LaunchError, match=rf"\b{variable}\b"):
        read_process_info(env)


def test_a_guess_never_fails():
    assert guess_process_info(without(WORLD_SIZE="x")).rank == 5
    assert guess_process_info(without("WORLD_SIZE", RANK="?")).world_size == 1


def test_who_reports():
    assert agent_reports({"TRL_AGENT_PID": str(os.getppid())})
    assert not agent_reports({"TRL_AGENT_PID": "1234567"})
    assert not agent_reports({})
