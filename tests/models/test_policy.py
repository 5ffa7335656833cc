"""Token losses of whole models: layouts agree with each other and with the plain formula, and documents never leak."""

import copy

import pytest
import torch
from torch import nn

from tests.fixtures.tiny import tiny_model
from trl.errors import ModelError
from trl.layout.labels import IGNORE
from trl.models.documents import supports_documents
from trl.models.policy import Policy, choose_layout, model_inputs

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3"]
LENGTHS = [9, 1, 30, 4]


def documents(seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 300, (n,), generator=g) for n in LENGTHS]


def shifted(ids):
    """Labels of the next token; every other position unsupervised, to have a mask at all."""
    out = torch.cat([ids[1:], torch.tensor([IGNORE])])
    out[::3] = IGNORE
    return out


def flat(docs):
    cu = torch.tensor([0, *torch.tensor([len(d) for d in docs]).cumsum(0).tolist()], dtype=torch.int32)
    return {
        "input_ids": torch.cat(docs)[None],
        "shift_labels": torch.cat([shifted(d) for d in docs])[None],
        "position_ids": torch.cat([torch.arange(len(d)) for d in docs])[None],
        "cu_seqlens": cu,
    }


def padded(docs):
    longest = max(map(len, docs))
    batch = {"input_ids": [], "shift_labels": [], "attention_mask": []}
    for d in docs:
        pad = longest - len(d)
        batch["input_ids"].append(nn.functional.pad(d, (0, pad)))
        batch["shift_labels"].append(nn.functional.pad(shifted(d), (0, pad), value=IGNORE))
        batch["attention_mask"].append(nn.functional.pad(torch.ones_like(d), (0, pad)))
    return {k: torch.stack(v) for k, v in batch.items()}


def plain_loss(model, docs):
    """Each document alone through the model's own forward."""
    total = torch.zeros((), dtype=torch.float64)
    for d in docs:
        logps = torch.log_softmax(model(input_ids=d[None]).logits[0].double(), -1)
        labels = shifted(d)
        keep = labels != IGNORE
        total = total - logps[keep].gather(1, labels[keep][:, None]).sum()
    return total


def make(family, implementation, **over):
    if family in ("mistral", "gemma3"):
        over["sliding_window"] = 8  # shorter than the longest document
    model = tiny_model(family=family, dtype=torch.float64, **over)
    model.set_attn_implementation(implementation)
    if family == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped product has no fp64
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_flat_and_padded_equal_each_document_alone(family, implementation):
    model = make(family, implementation)
    # Eager attention takes its softmax in fp32 whatever the model's dtype, and so does Gemma 3 its norms: there the
    # sums of a padded and a flat row differ by fp32 rounding, elsewhere by fp64 rounding.
    tolerance = 1e-6 if implementation == "eager" or family == "gemma3" else 1e-11
    docs = documents()
    want = plain_loss(model, docs)
    wanted = torch.autograd.grad(want, list(model.parameters()), allow_unused=True)
    layout = choose_layout(model, packing=False, padding_free=implementation == "eager")
    assert layout == "flat"
    policy = Policy(model)
    for batch in (flat(docs), padded(docs)):
        loss = policy.token_loss(model, batch)
        assert abs(loss.total - want) < tolerance * abs(want)
        got = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True)
        for (name, _), a, b in zip(model.named_parameters(), got, wanted, strict=True):
            assert (a is None) == (b is None), name
            if a is not None:
                assert (a - b).norm() <= 10 * tolerance * b.norm() + 1e-12, name


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_token_probe(implementation, checkpointing):
    """Changing one token of one document changes, bit by bit, only the losses of that document from there on."""
    model = make("llama", implementation)
    choose_layout(model, packing=True, padding_free=True)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
    policy = Policy(model)
    docs = documents()
    before = policy.token_loss(model, flat(docs))
    docs[2] = docs[2].clone()
    docs[2][10] += 1
    after = policy.token_loss(model, flat(docs))
    supervised = torch.nonzero(flat(docs)["shift_labels"][0] != IGNORE)[:, 0]
    changed = (before.logps != after.logps).nonzero()[:, 0]
    positions = supervised[changed].tolist()
    start = sum(LENGTHS[:2])
    assert positions
    assert min(positions) >= start + 9  # position 9 predicts the changed token
    assert max(positions) < start + LENGTHS[2]


def test_gradient_checkpointing_keeps_documents_apart_in_the_backward():
    model = make("llama", "sdpa")
    choose_layout(model, packing=True, padding_free=False)
    policy = Policy(model)
    docs = documents()
    plain = torch.autograd.grad(policy.token_loss(model, flat(docs)).total, list(model.parameters()))
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    recomputed = torch.autograd.grad(policy.token_loss(model, flat(docs)).total, list(model.parameters()))
    for a, b in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_document_attention_still_generates_like_sdpa():
    model = make("qwen2", "sdpa").eval()
    prompt = padded(documents())
    ids, mask = prompt["input_ids"].flip(1), prompt["attention_mask"].flip(1)  # left padding
    arguments = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want = model.generate(**arguments)
    choose_layout(model, packing=False, padding_free=False)
    assert model.config._attn_implementation != "sdpa"
    assert torch.equal(model.generate(**arguments), want)


def test_no_supervised_token_gives_zero_gradients_everywhere():
    model = make("llama", "sdpa")
    choose_layout(model, packing=False, padding_free=False)
    batch = flat(documents())
    batch["shift_labels"] = torch.full_like(batch["shift_labels"], IGNORE)
    loss = Policy(model).token_loss(model, batch)
    loss.total.backward()
    assert loss.total.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("target", ["q_proj", "lm_head"])
def test_lora_including_on_the_head(target):
    from peft import LoraConfig, get_peft_model

    model = make("llama", "sdpa", tie=False)
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=[target], lora_dropout=0.0, init_lora_weights=False))
    docs = documents()
    want = plain_loss(peft, docs)
    trainable = [p for p in peft.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(want, trainable)
    choose_layout(peft, packing=False, padding_free=False)
    loss = Policy(peft).token_loss(peft, flat(docs))
    assert abs(loss.total - want) < 1e-9 * abs(want)
    for a, b in zip(torch.autograd.grad(loss.total, trainable), wanted, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-6, atol=1e-8)


def test_a_copy_of_the_model_runs_its_own_weights():
    model = make("llama", "sdpa")
    Policy(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    choose_layout(twin, packing=False, padding_free=False)
    loss = Policy(twin).token_loss(twin, flat(documents()))
    assert abs(loss.total.item() / len(loss.logps) - torch.tensor(384.0).log().item()) < 1e-6


def test_recurrent_layers_are_refused_for_packing():
    model = make("llama", "sdpa")
    model.config.layer_types = ["linear_attention", "full_attention"]
    assert not supports_documents(model)
    with pytest.raises(ModelError, match="cannot train on packed documents"):
        choose_layout(model, packing=True, padding_free=False)
    assert choose_layout(model, packing=False, padding_free=False) == "padded"


def test_logit_scale_and_softcap_come_from_the_config():
    model = make("llama", "sdpa")
    docs = documents()
    plain = Policy(model).token_loss(model, padded(docs)).logps
    model.config.final_logit_softcapping = 0.5
    model.config.logit_scale = 0.25
    capped = Policy(model).token_loss(model, padded(docs)).logps
    inputs, _ = model_inputs(model, padded(docs))
    logits = 0.5 * torch.tanh(type(model).forward(model, **inputs).logits * 0.25 / 0.5)
    labels = padded(docs)["shift_labels"]
    want = torch.log_softmax(logits, -1)[labels != IGNORE].gather(1, labels[labels != IGNORE][:, None])[:, 0]
    torch.testing.assert_close(capped, want)
    assert not torch.allclose(capped, plain)
