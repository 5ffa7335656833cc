"""From flags, environment and devices to what will be started. Nothing here starts anything."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trl.errors import LaunchError
from trl.launch.environment import is_launched, read_process_info
from trl.launch.flags import to_argv

# Flags that say where the nodes of a job meet. With one of them the user decides, without any the launcher does.
_RENDEZVOUS = ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "node_rank")
# Flags that one process on one node can do without a launcher for.
_SHAPE = ("nnodes", "nproc_per_node", "standalone")


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started on this node.

    Attributes:
        kind: "in_place": the worker takes the place of this process; "agent": this process becomes torchrun.
        processes: workers on this node.
        worker: name of the module to run and its arguments.
        torchrun: arguments for torchrun before the name of the module; empty in place.
        environment: variables to set for the workers.
        notes: lines to say once, before the start.
    """

    kind: Literal["in_place", "agent"]
    processes: int
    worker: tuple[str, ...]
    torchrun: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def command(self) -> str:
        """The equivalent command, to be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        launcher = ["torchrun", *self.torchrun] if self.kind == "agent" else ["python"]
        return " ".join([*variables, shlex.join([*launcher, "-m", *self.worker])])


def make_plan(
    flags: Mapping[str, str],
    worker: Sequence[str],
    env: Mapping[str, str],
    accelerators: int,
    cores: int,
    variables: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Decide what to start.

    Args:
        flags: torchrun flags, as `trl.launch.flags` returns them.
        worker: name of the module to run, then its arguments.
        env: the environment of this process.
        accelerators: devices of this machine.
        cores: cores of this machine.
        variables: environment variables that the user wants set for the workers.

    Raises:
        LaunchError: the flags cannot be carried out on this machine, or the environment contradicts itself.
    """
    environment = dict(variables or {})
    if is_launched(env):
        read_process_info(env)  # complains where the environment is left over from another job
        return LaunchPlan("in_place", 1, tuple(worker), environment=environment)

    processes = _processes(flags.get("nproc_per_node"), accelerators, cores)
    nodes = _most_nodes(flags.get("nnodes", "1"))
    if nodes > 1 and not any(name in flags for name in ("rdzv_endpoint", "master_addr", "rdzv_conf")):
        raise LaunchError(
            f"{nodes} nodes were asked for, but not where they meet.",
            fix="give every node the same --rdzv_backend c10d --rdzv_endpoint HOST:PORT, HOST being one of the nodes",
        )
    if nodes == 1 and processes == 1 and all(name in _SHAPE for name in flags):
        return LaunchPlan("in_place", 1, tuple(worker), environment=environment)

    chosen = {**flags, "nproc_per_node": str(processes)}
    if nodes == 1 and not any(name in flags for name in _RENDEZVOUS):
        # The agent's own store listens on a port that the system assigns, and the workers are told that port. Nothing
        # is probed and let go again, so two launches never meet. The address spares a look-up of the name of this
        # machine, which in containers often leads nowhere.
        chosen["standalone"] = "true"
        chosen.setdefault("local_addr", "127.0.0.1")
    notes: tuple[str, ...] = ()
    if "OMP_NUM_THREADS" not in env and "OMP_NUM_THREADS" not in environment:
        threads = max(1, cores // processes)
        environment["OMP_NUM_THREADS"] = str(threads)
        notes = (
            f"OMP_NUM_THREADS={threads} ({cores} cores / {processes} processes; set it to choose another number)",
        )
    return LaunchPlan("agent", processes, tuple(worker), tuple(to_argv(chosen)), environment, notes)


def _processes(text: str | None, accelerators: int, cores: int) -> int:
    if text is None:
        return max(1, accelerators)
    if text == "auto":
        return accelerators or cores
    if text == "cpu":
        return cores
    if text == "gpu":
        if accelerators == 0:
            raise LaunchError(
                "--nproc_per_node gpu was asked for, but this machine shows no accelerator.",
                why="CUDA_VISIBLE_DEVICES and the device files in /dev were looked at",
                fix="give a number of processes",
            )
        return accelerators
    if not text.isdigit() or int(text) == 0:
        raise LaunchError(f"--nproc_per_node takes a number from 1, gpu, cpu or auto, not {text!r}.")
    return int(text)


def _most_nodes(text: str) -> int:
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts) or int(parts[0]) > int(parts[-1]):
        raise LaunchError(f"--nnodes takes a number from 1 or MIN:MAX, not {text!r}.")
    return int(parts[-1])
