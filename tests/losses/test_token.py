"""The token loss against the plain formula: values, gradients, in every dtype and shape of head."""

import pytest
import torch
import torch.nn.functional as F

from trl.losses.token import HeadShape, linear_token_loss

N, H, V = 37, 16, 101


def _case(dtype=torch.float64, bias=False):
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=g, dtype=dtype).requires_grad_()
    weight = torch.randn(V, H, generator=g, dtype=dtype).requires_grad_()
    b = torch.randn(V, generator=g, dtype=dtype).requires_grad_() if bias else None
    return hidden, weight, b, torch.randint(0, V, (N,), generator=g)


def _plain(hidden, weight, bias, targets, kind, shape):
    logits = F.linear(hidden, weight, bias) * shape.scale
    if shape.softcap is not None:
        logits = shape.softcap * torch.tanh(logits / shape.softcap)
    logps = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    return -(logps.exp().detach() * logps).sum() if kind == "dft" else -logps.sum()


@pytest.mark.parametrize("kind", ["nll", "dft"])
@pytest.mark.parametrize("shape", [HeadShape(), HeadShape(scale=0.3), HeadShape(scale=2.0, softcap=5.0)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [None, 5, 37])
def test_value_and_gradients_equal_the_plain_formula(kind, shape, bias, chunk):
    hidden, weight, b, targets = _case(bias=bias)
    leaves = [t for t in (hidden, weight, b) if t is not None]
    want = _plain(hidden, weight, b, targets, kind, shape)
    want_grads = torch.autograd.grad(want * 0.7, leaves)
    got = linear_token_loss(hidden, weight, targets, bias_V=b, kind=kind, shape=shape, chunk_rows=chunk)
    got_grads = torch.autograd.grad(got.total * 0.7, leaves)
    torch.testing.assert_close(got.total, want, rtol=1e-12, atol=1e-12)
    for a, e in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-12)


def test_hand_computed():
    # Logits (0, ln 3): p = (1/4, 3/4). Target 1: nll = ln 4/3, dft = 3/4 ln 4/3.
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    weight = torch.tensor([[0.0], [3.0]], dtype=torch.float64).clone()
    weight[1] = torch.log(torch.tensor(3.0, dtype=torch.float64))
    loss = linear_token_loss(hidden, weight, torch.tensor([1]))
    assert abs(loss.total.item() - 0.2876820724517809) < 1e-14
    assert loss.correct.tolist() == [True]
    assert (
        abs(linear_token_loss(hidden, weight, torch.tensor([1]), kind="dft").total.item() - 0.21576155433883565)
        < 1e-14
    )
    assert linear_token_loss(hidden, weight, torch.tensor([0])).correct.tolist() == [False]


def test_no_supervised_position_gives_zero_and_zero_gradients():
    hidden, weight, _, targets = _case()
    loss = linear_token_loss(hidden[:0], weight, targets[:0])
    grads = torch.autograd.grad(loss.total, [hidden, weight])
    assert loss.total.item() == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in grads)


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_the_same():
    hidden, weight, _, targets = _case()
    want = torch.autograd.grad(_plain(hidden, weight, None, targets, "nll", HeadShape()), [hidden])[0]
    got = linear_token_loss(hidden, weight.detach(), targets, chunk_rows=8).total
    torch.testing.assert_close(torch.autograd.grad(got, [hidden])[0], want, rtol=1e-10, atol=1e-12)


def test_second_backward_is_refused():
    hidden, weight, _, targets = _case()
    total = linear_token_loss(hidden, weight, targets).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already differentiated"):
        total.backward()


def test_autocast_sums_in_fp32():
    hidden, weight, _, targets = _case(torch.float32)
    want = _plain(hidden, weight, None, targets, "nll", HeadShape())
    wanted = torch.autograd.grad(want, [hidden, weight])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_token_loss(hidden, weight, targets, chunk_rows=8)
    assert loss.total.dtype == torch.float32
    got = torch.autograd.grad(loss.total, [hidden, weight])
    assert abs(loss.total / want - 1) < 0.01
    for a, e in zip(got, wanted, strict=True):
        assert a.dtype == torch.float32
        assert ((a - e).norm() / e.norm()) < 0.02


def test_peak_memory_does_not_hold_the_logits():
    rows, vocabulary = 4096, 20_000
    hidden, weight = torch.randn(rows, 8).requires_grad_(), torch.randn(vocabulary, 8).requires_grad_()
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    with Largest():
        linear_token_loss(hidden, weight, torch.zeros(rows, dtype=torch.long)).total.backward()
    assert largest < rows * vocabulary / 3
