"""What this machine has: accelerators and cores, found without importing torch.

Importing torch costs seconds and, on some systems, initialises the driver in a process that never trains.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path


def count_accelerators(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """How many accelerators a process started here would see.

    Args:
        env: the environment; `CUDA_VISIBLE_DEVICES`, and on ROCm `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES`,
            limit the number.
        root: folder that holds `dev`, `proc` and `sys`.

    Returns:
        The number of NVIDIA devices, else of AMD devices, else 0.
    """
    env = os.environ if env is None else env
    nvidia = _count_nvidia(root)
    if nvidia:
        return _visible(env.get("CUDA_VISIBLE_DEVICES"), nvidia)
    amd = _count_amd(root)
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        amd = _visible(env.get(variable), amd)
    return amd


def count_cores(root: Path = Path("/")) -> int:
    """How many cores this process may use: its affinity, less where a container has a smaller quota; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return allowed


def _count_nvidia(root: Path) -> int:
    # A container shows every GPU of the machine in /proc but only its own in /dev; a machine whose driver makes the
    # device nodes on first use has only /proc.
    nodes = [path for path in _listing(root / "dev") if re.fullmatch(r"nvidia[0-9]+", path.name)]
    return len(nodes) or len(_listing(root / "proc/driver/nvidia/gpus"))


def _count_amd(root: Path) -> int:
    if not (root / "dev/kfd").exists():
        return 0
    # Every node of the topology that computes is listed, processors too; only devices have SIMD units.
    return sum(_has_simd(node / "properties") for node in _listing(root / "sys/class/kfd/kfd/topology/nodes"))


def _has_simd(properties: Path) -> bool:
    try:
        match = re.search(r"^simd_count (\d+)$", properties.read_text(), re.MULTILINE)
    except OSError:  # a device that belongs to another container
        return False
    return bool(match and int(match[1]) > 0)


def _visible(variable: str | None, present: int) -> int:
    """How many of `present` devices a variable such as `0,2` leaves.

    As in torch, entries after the first bad one do not count, and none counts if one is given twice.
    """
    if variable is None:
        return present
    seen: set[str] = set()
    for item in variable.split(","):
        name = item.strip()
        is_index = name.isdigit() and int(name) < present
        is_identifier = re.match(r"(GPU|MIG)-", name) is not None
        if not (is_index or is_identifier):
            break
        if name in seen:
            return 0
        seen.add(name)
    return len(seen)


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
