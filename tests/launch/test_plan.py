"""The plan, over flags, environment and devices. Nothing is started here."""

import pytest

from trl.errors import LaunchError
from trl.launch.plan import make_plan

WORKER = ("trl.cli.worker", "sft", "--config", "a b.yaml")
LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} | {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def plan(flags=None, env=None, accelerators=0, cores=8, variables=None):
    return make_plan(flags or {}, WORKER, env or {}, accelerators, cores, variables)


@pytest.mark.parametrize(
    ("nproc", "accelerators", "cores", "expected"),
    [
        (None, 0, 8, 1),
        (None, 1, 8, 1),
        (None, 8, 8, 8),
        ("2", 0, 8, 2),
        ("2", 8, 8, 2),
        ("1", 8, 8, 1),
        ("gpu", 4, 8, 4),
        ("cpu", 4, 8, 8),
        ("auto", 4, 8, 4),
        ("auto", 0, 8, 8),
    ],
)
def test_processes(nproc, accelerators, cores, expected):
    result = plan({"nproc_per_node": nproc} if nproc else {}, accelerators=accelerators, cores=cores)
    assert result.processes == expected
    assert result.kind == ("in_place" if expected == 1 else "agent")
    assert result.worker == WORKER


@pytest.mark.parametrize("flags", [{}, {"nproc_per_node": "4"}, {"nnodes": "2", "rdzv_endpoint": "h:1"}])
@pytest.mark.parametrize("accelerators", [0, 8])
def test_never_starts_processes_when_launched(flags, accelerators):
    result = plan(flags, env=LAUNCHED, accelerators=accelerators)
    assert (result.kind, result.processes, result.torchrun, result.notes) == ("in_place", 1, (), ())


def test_a_leftover_environment_is_named():
    with pytest.raises(LaunchError, match="WORLD_SIZE"):
        plan(env={"RANK": "0"})


def test_one_node_owns_its_port():
    result = plan({"nproc_per_node": "2"})
    assert "--standalone" in result.torchrun
    assert result.torchrun[result.torchrun.index("--local_addr") + 1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("master_port", "29511"), ("rdzv_endpoint", "localhost:29511"), ("rdzv_backend", "static"), ("rdzv_id", "7")],
)
def test_a_rendezvous_of_the_user_is_kept(name, value):
    result = plan({"nproc_per_node": "2", name: value})
    assert "--standalone" not in result.torchrun
    assert "--local_addr" not in result.torchrun
    assert result.torchrun[result.torchrun.index(f"--{name}") + 1] == value


def test_many_nodes():
    flags = {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "10.0.0.1:29500", "node_rank": "1"}
    result = plan(flags, accelerators=8)
    expected = "--nnodes 2 --nproc_per_node 8 --node_rank 1 --rdzv_backend c10d --rdzv_endpoint 10.0.0.1:29500"
    assert " ".join(result.torchrun) == expected
    assert plan(flags).kind == "agent"  # one process a node still needs an agent


@pytest.mark.parametrize("flags", [{"max_restarts": "3"}, {"log_dir": "logs", "redirects": "3"}])
def test_one_process_with_a_flag_only_an_agent_knows(flags):
    assert plan(flags).kind == "agent"


@pytest.mark.parametrize("flags", [{"nnodes": "1"}, {"standalone": "true"}, {"nnodes": "1:1", "nproc_per_node": "1"}])
def test_one_process_needs_no_agent(flags):
    assert plan(flags).kind == "in_place"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"nproc_per_node": "0"}, "number from 1"),
        ({"nproc_per_node": "many"}, "'many'"),
        ({"nproc_per_node": "gpu"}, "no accelerator"),
        ({"nnodes": "x"}, "--nnodes"),
        ({"nnodes": "0"}, "--nnodes"),
        ({"nnodes": "3:2"}, "--nnodes"),
        ({"nnodes": "1:2:3"}, "--nnodes"),
        ({"nnodes": "2"}, "not where they meet"),
    ],
)
def test_what_cannot_be_carried_out(flags, message):
    with pytest.raises(LaunchError, match=message):
        plan(flags)


@pytest.mark.parametrize(("nproc", "cores", "expected"), [("2", 8, "4"), ("3", 8, "2"), ("16", 8, "1")])
def test_threads(nproc, cores, expected):
    result = plan({"nproc_per_node": nproc}, cores=cores)
    assert result.environment == {"OMP_NUM_THREADS": expected}
    assert len(result.notes) == 1
    assert f"OMP_NUM_THREADS={expected}" in result.notes[0]


def test_threads_of_the_user():
    for env, variables in [({"OMP_NUM_THREADS": "3"}, {}), ({}, {"OMP_NUM_THREADS": "3"})]:
        result = plan({"nproc_per_node": "2"}, env=env, variables=variables)
        assert (result.environment, result.notes) == (variables, ())


def test_the_command_can_be_pasted():
    result = plan({"nproc_per_node": "2"}, variables={"WANDB_MODE": "off line"})
    assert result.command() == (
        "WANDB_MODE='off line' OMP_NUM_THREADS=4 torchrun --nproc_per_node 2 --standalone --local_addr 127.0.0.1 "
        "-m trl.cli.worker sft --config 'a b.yaml'"
    )
