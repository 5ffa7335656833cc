"""Settings that every test needs before torch is imported."""

import os

# One thread, and no spinning while it waits: on a busy machine spinning threads cost a factor of ten and more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(scope="session")
def pool():
    """Worker processes for distributed tests, shared by the whole session."""
    from tests.pool import Pool

    workers = Pool()
    yield workers
    workers.close()


def pytest_collection_modifyitems(items):
    """Tests marked `gpu` are left out, and say why, where there is no GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none here"))
