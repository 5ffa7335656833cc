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
