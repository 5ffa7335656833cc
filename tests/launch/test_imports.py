"""The collector rests during imports and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from trl.launch.imports import lasting_imports


@pytest.mark.parametrize("active", [True, False])
def test_the_collector_rests_and_is_then_as_before(active):
    was = gc.isenabled()
    (gc.enable if active else gc.disable)()
    try:
        with lasting_imports():
            assert not gc.isenabled()
        assert gc.isenabled() == active
    finally:
        (gc.enable if was else gc.disable)()
        gc.unfreeze()


def test_after_an_import_that_fails_it_is_as_before():
    with pytest.raises(ModuleNotFoundError), lasting_imports():
        import trl.there_is_no_such_module  # noqa: F401
    assert gc.isenabled()
    gc.unfreeze()


def test_what_was_made_inside_is_not_looked_through_again():
    gc.unfreeze()
    with lasting_imports():
        made = [[] for _ in range(100)]
    assert gc.get_freeze_count() > len(made)
    gc.unfreeze()
