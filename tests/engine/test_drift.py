"""Replicas that drift apart are noticed, and the rank is named."""

import os

import pytest
import torch
from transformers import TrainerCallback

from tests.engine.runs import train
from trl.distributed.drift import weights_hash


class Meddler(TrainerCallback):
    """Changes the last bit of one weight on rank 1 after step 4."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 4 and os.environ.get("RANK") == "1":
            with torch.no_grad():
                weight = next(model.parameters()).view(-1)
                weight[7] = torch.nextafter(weight[7], weight[7] + 1)


def train_with_meddler(**options):
    return train(callbacks=[Meddler()], **options)


@pytest.mark.parametrize("options", [{"drift_check_steps": 3}, {"save_strategy": "steps", "save_steps": 6}])
def test_one_bit_on_one_rank(pool, options):
    with pytest.raises(AssertionError, match=r"after step 6 the weights of rank 1 differ"):
        pool.run(train_with_meddler, 3, global_batch_size=16, **options)


def test_equal_replicas_pass_and_it_can_be_switched_off(pool):
    pool.run(train, 2, global_batch_size=16, drift_check_steps=1)
    pool.run(train_with_meddler, 2, global_batch_size=16, drift_check_steps=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
def test_the_hash_sees_every_element_and_its_place(dtype):
    a, b = torch.arange(1, 9).to(dtype), torch.arange(20, 26).to(dtype)
    hashes = {int(weights_hash([a, b]))}
    for i in range(len(a)):
        changed = a.clone()
        changed[i] += 1
        hashes.add(int(weights_hash([changed, b])))
    hashes |= {int(weights_hash([b, a])), int(weights_hash([a.flip(0), b])), int(weights_hash([a]))}
    assert len(hashes) == 1 + len(a) + 3
    assert int(weights_hash([a.clone(), b.clone()])) in hashes
