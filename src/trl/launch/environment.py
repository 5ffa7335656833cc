"""Who this process is. The only reader of RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and MASTER_*."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from trl.errors import LaunchError

JOB_VARIABLE = "TRL_JOB_ID"
AGENT_VARIABLE = "TRL_AGENT_PID"


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a job.

    Attributes:
        rank: number in the job, from 0.
        local_rank: number on its node, from 0.
        world_size: processes in the job.
        local_world_size: processes on this node.
        node_rank: number of the node, from 0.
        host: name of the node.
        launched_by: "nothing" for a single process, else "trl", "torchrun" or "environment" (set by another tool).
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    host: str
    launched_by: str

    @property
    def label(self) -> str:
        """The process in words, for messages."""
        return f"rank {self.rank} of {self.world_size} on {self.host}"


def is_launched(env: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher made this process one of a job, so that it must not start processes of its own."""
    return "RANK" in (os.environ if env is None else env)


def read_process_info(env: Mapping[str, str] | None = None) -> ProcessInfo:
    """Read what the launcher left in the environment, and check that it fits together.

    Raises:
        LaunchError: a variable is missing, is no number or contradicts another; the message names it.
    """
    env = os.environ if env is None else env
    host = socket.gethostname()
    if not is_launched(env):
        world_size = _number(env, "WORLD_SIZE", default=1)
        if world_size > 1:
            raise _incomplete("RANK", f"WORLD_SIZE is {world_size}")
        return ProcessInfo(0, 0, 1, 1, 0, host, "nothing")

    rank = _number(env, "RANK")
    world_size = _number(env, "WORLD_SIZE")
    _check_below("RANK", rank, "WORLD_SIZE", world_size)
    local_rank = _number(env, "LOCAL_RANK", default=0 if world_size == 1 else None)
    # Without a number of processes per node, a rank that equals its local rank is as on a single node.
    local_size_variable = "LOCAL_SIZE" if "LOCAL_SIZE" in env and "LOCAL_WORLD_SIZE" not in env else "LOCAL_WORLD_SIZE"
    local_world_size = _number(env, local_size_variable, default=world_size if rank == local_rank else None)
    _check_below("LOCAL_RANK", local_rank, local_size_variable, local_world_size)
    if local_world_size > world_size:
        raise _contradiction(local_size_variable, local_world_size, "WORLD_SIZE", world_size)
    if local_rank > rank:
        raise _contradiction("LOCAL_RANK", local_rank, "RANK", rank)
    if world_size > 1:
        for variable in ("MASTER_ADDR", "MASTER_PORT"):
            if not env.get(variable):
                raise _incomplete(variable, f"WORLD_SIZE is {world_size}")
        _number(env, "MASTER_PORT")
    node_variable = "GROUP_RANK" if "GROUP_RANK" in env else "NODE_RANK"
    node_rank = _number(env, node_variable, default=(rank - local_rank) // local_world_size)
    return ProcessInfo(rank, local_rank, world_size, local_world_size, node_rank, host, _launcher(env))


def guess_process_info(env: Mapping[str, str] | None = None) -> ProcessInfo:
    """Like `read_process_info`, but never fails: for reports of an error, which may be that very error."""
    env = os.environ if env is None else env
    try:
        return read_process_info(env)
    except LaunchError:
        rank, size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
        number = int(rank) if rank.isdigit() else 0
        return ProcessInfo(number, 0, int(size) if size.isdigit() else 1, 1, 0, socket.gethostname(), _launcher(env))


def agent_reports(env: Mapping[str, str] | None = None) -> bool:
    """Whether the parent is an agent of ours, which will say what failed when all processes have ended."""
    env = os.environ if env is None else env
    return env.get(AGENT_VARIABLE) == str(os.getppid())


def _launcher(env: Mapping[str, str]) -> str:
    if not is_launched(env):
        return "nothing"
    if AGENT_VARIABLE in env:
        return "trl"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment"


def _number(env: Mapping[str, str], variable: str, default: int | None = None) -> int:
    text = env.get(variable)
    if text is None:
        if default is None:
            raise _incomplete(variable, f"RANK is {env.get('RANK')}")
        return default
    if not text.strip().isdigit():
        raise LaunchError(f"The environment variable {variable} is {text!r}, which is not a number from 0.")
    return int(text)


def _check_below(variable: str, value: int, limit_variable: str, limit: int) -> None:
    if value >= limit:
        raise _contradiction(variable, value, limit_variable, limit)


def _contradiction(variable: str, value: int, other: str, other_value: int) -> LaunchError:
    return LaunchError(
        f"The environment contradicts itself: {variable} is {value}, but {other} is {other_value}.",
        fix=f"unset RANK, WORLD_SIZE and {variable} where they are left over from another job, or correct {variable}",
    )


def _incomplete(variable: str, because: str) -> LaunchError:
    return LaunchError(
        f"The environment variable {variable} is missing, though {because}.",
        why="a launcher sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT together",
        fix=f"set {variable}, or unset the others and let `trl` or torchrun start the processes",
    )
