"""What only a GPU can show: the fused kernel over documents, and the token loss in its dtypes."""

import pytest
import torch

from tests.fixtures.tiny import tiny_model
from tests.models.test_policy import documents, flat, padded
from trl.models.policy import Policy, choose_layout

pytestmark = pytest.mark.gpu


def on_gpu(batch):
    return {name: value.cuda() for name, value in batch.items()}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_the_fused_kernel_equals_padded_attention(family):
    """bf16: the losses of each layout are within bf16 rounding of fp32, and of each other."""
    over = {"sliding_window": 8} if family == "mistral" else {}
    model = tiny_model(family=family, head_dim=32, **over).cuda()
    policy = Policy(model)
    exact = policy.token_loss(model, on_gpu(padded(documents())))
    assert choose_layout(model, packing=False, padding_free=False) == "flat"
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fused = policy.token_loss(model, on_gpu(flat(documents())))
    torch.testing.assert_close(fused.logps.sort().values, exact.logps.sort().values, rtol=0.03, atol=0.03)
    fused.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_one_token_probe_on_the_fused_kernel():
    model = tiny_model(family="llama", head_dim=32).cuda()
    choose_layout(model, packing=True, padding_free=False)
    policy = Policy(model)
    docs = documents()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        before = policy.token_loss(model, on_gpu(flat(docs))).logps
        docs[0][3] += 1
        after = policy.token_loss(model, on_gpu(flat(docs))).logps
    first = sum(1 for label in flat(docs)["shift_labels"][0, : len(docs[0])] if label != -100)
    assert torch.equal(before[first:], after[first:])
    assert not torch.equal(before[:first], after[:first])
