"""Devices are counted from files and variables, on machines made of a temporary folder."""

import pytest

from trl.launch.devices import count_accelerators, count_cores


def machine(root, nodes=(), gpus=0, kfd=()):
    (root / "dev").mkdir()
    for name in nodes:
        (root / "dev" / name).touch()
    for index in range(gpus):
        (root / "proc/driver/nvidia/gpus" / f"0000:0{index}:00.0").mkdir(parents=True)
    for index, simd in enumerate(kfd):
        (root / "dev/kfd").touch()
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(index)
        node.mkdir(parents=True)
        (node / "properties").write_text(
            f"cpu_cores_count {0 if simd else 64}\nsimd_count {simd}\nmem_banks_count 1\n"
        )
    return root


NVIDIA_4 = {"nodes": ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null")}
NVIDIA_12 = {"nodes": tuple(f"nvidia{i}" for i in range(12))}
AMD_2 = {"kfd": (0, 0, 304, 304)}


@pytest.mark.parametrize(
    ("parts", "env", "expected"),
    [
        ({}, {}, 0),
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}, 0),
        (NVIDIA_4, {}, 4),
        ({**NVIDIA_4, "gpus": 8}, {}, 4),  # a container that was given half of the machine
        ({"gpus": 8}, {}, 8),  # device files not yet made
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": "2"}, 1),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": " 2, 3"}, 2),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": "0,7,1"}, 1),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": "0,1,1"}, 0),
        (NVIDIA_4, {"CUDA_VISIBLE_DEVICES": "GPU-1a2b,MIG-3c4d"}, 2),
        (NVIDIA_4, {"HIP_VISIBLE_DEVICES": "0"}, 4),
        (NVIDIA_12, {"CUDA_VISIBLE_DEVICES": "10,11"}, 2),
        (AMD_2, {}, 2),
        (AMD_2, {"HIP_VISIBLE_DEVICES": "1"}, 1),
        (AMD_2, {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": ""}, 0),
        (AMD_2, {"CUDA_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_count_accelerators(tmp_path, parts, env, expected):
    assert count_accelerators(env, machine(tmp_path, **parts)) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), (None, 6)]
)
def test_count_cores(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    if text is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text + "\n")
    assert count_cores(tmp_path) == expected
