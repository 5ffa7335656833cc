"""SFTTrainer as its users call it."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from tests.fixtures.tiny import tiny_model, tiny_tokenizer
from trl import SFTTrainer, TrlError

CHAT = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]
KINDS = {
    "text": [{"text": f"the number {i}"} for i in range(8)],
    "prompt and completion": [{"prompt": f"{i}+1=", "completion": f"{i + 1}"} for i in range(8)],
    "conversational prompt": [{"prompt": CHAT[:1], "completion": CHAT[1:]}] * 8,
    "messages": [{"messages": CHAT}] * 8,
    "ShareGPT": [{"conversations": [{"from": "human", "value": "2+3?"}, {"from": "gpt", "value": "5"}]}] * 8,
    "token rows": [{"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1]}] * 8,
}


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_row_trains(tiny_folder, config, kind):
    trainer = SFTTrainer(tiny_folder, config(max_steps=3), train_dataset=Dataset.from_list(KINDS[kind]))
    trainer.train()
    first, *_, last = losses(trainer)
    assert last < first


def test_the_loss_is_the_mean_over_supervised_tokens(tiny_folder, config):
    """Against the model's own logits, row by row: first step, before any update."""
    rows = Dataset.from_list([{"prompt": "1+1=", "completion": "2"}, {"prompt": "what is 20+30?", "completion": "50"}])
    trainer = SFTTrainer(tiny_folder, config(max_steps=1, global_batch_size=2), train_dataset=rows)
    model = copy.deepcopy(trainer.model)
    prepared = list(trainer.train_dataset)
    trainer.train()
    total = count = 0.0
    for row in prepared:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        logps = torch.log_softmax(type(model).forward(model, input_ids=ids).logits[0, :-1], -1)
        keep = labels[1:] != -100
        total -= logps[keep].gather(1, labels[1:][keep][:, None]).sum().item()
        count += keep.sum().item()
    assert count == 2 + 3  # "2" and "50" digit by digit, and the end of each
    assert losses(trainer)[0] == pytest.approx(total / count, rel=1e-5)


def test_a_saved_model_loads_with_plain_transformers(tiny_folder, config, chats, tmp_path):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert model.config._attn_implementation == "sdpa"
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, trainer.model.state_dict()[name]), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    prompt = tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**prompt, max_new_tokens=3).shape[1] > prompt["input_ids"].shape[1]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packed_documents_never_see_each_other(tiny_folder, config, strategy):
    """The one-token probe through the whole trainer: rows packed by it, batches made by its collator."""
    rows = Dataset.from_list([{"input_ids": list(range(10 + 20 * i, 22 + 20 * i))} for i in range(6)])
    arguments = {"packing": True, "packing_strategy": strategy, "max_length": 30, "gradient_checkpointing": False}
    trainer = SFTTrainer(tiny_folder, config(**arguments), train_dataset=rows)
    assert len(trainer.train_dataset) < 6
    changed = False
    for row in trainer.train_dataset:
        lengths = row["seq_lengths"]
        if len(lengths) < 2:
            continue
        batch = trainer.data_collator([row])
        before = trainer.policy.token_loss(trainer.model, batch).logps
        batch["input_ids"][0, 1] += 1  # in the first document
        after = trainer.policy.token_loss(trainer.model, batch).logps
        inside = lengths[0] - 1  # it predicts all but its first token
        assert torch.equal(before[inside:], after[inside:])
        assert not torch.equal(before[:inside], after[:inside])
        changed = True
    assert changed


def test_packing_does_not_change_the_sum_of_losses(tiny_folder, config):
    rows = Dataset.from_list(KINDS["text"])
    sums = []
    for packing in (False, True):
        trainer = SFTTrainer(tiny_folder, config(packing=packing, max_length=64), train_dataset=rows)
        batch = trainer.data_collator(list(trainer.train_dataset))
        sums.append(trainer.policy.token_loss(trainer.model, batch).total.item())
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)


def test_lora_trains_and_saves_an_adapter_only(tiny_folder, config, chats, tmp_path):
    from peft import AutoPeftModelForCausalLM, LoraConfig

    trainer = SFTTrainer(
        tiny_folder, config(), train_dataset=chats, peft_config=LoraConfig(r=4, target_modules="all-linear")
    )
    trainer.train()
    assert losses(trainer)[1] < losses(trainer)[0]
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size > 1000
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert any(p.any() for n, p in again.named_parameters() if "lora_B" in n)


def test_an_adapter_is_trained_further_from_its_folder(tiny_folder, config, chats, tmp_path):
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules="all-linear")
    first = SFTTrainer(tiny_folder, config(max_steps=6), train_dataset=chats, peft_config=adapter)
    first.train()
    first.save_model(str(tmp_path / "adapter"))
    again = SFTTrainer(str(tmp_path / "adapter"), config(), train_dataset=chats, eval_dataset=chats)
    assert again.evaluate()["eval_loss"] == pytest.approx(first.evaluate(chats)["eval_loss"], rel=1e-5)
    trained = [n for n, p in again.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    again.train()
    assert losses(again)[-1] < losses(first)[0]
    with pytest.raises(TrlError, match="is an adapter, and peft_config"):
        SFTTrainer(str(tmp_path / "adapter"), config(), train_dataset=chats, peft_config=adapter)


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_an_adapter_on_a_quantised_base(tiny_folder, config, chats, bits):
    pytest.importorskip("bitsandbytes", reason="quantised weights need the package bitsandbytes")
    from trl import ModelConfig, get_peft_config, get_quantization_config

    model_config = ModelConfig(use_peft=True, **{bits: True})
    trainer = SFTTrainer(
        tiny_folder,
        config(max_steps=4),
        train_dataset=chats,
        quantization_config=get_quantization_config(model_config),
        peft_config=get_peft_config(model_config),
    )
    frozen = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    assert any(p.dtype in (torch.uint8, torch.int8) for p in frozen.values())
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
    assert all(torch.equal(p, frozen[n]) for n, p in trainer.model.named_parameters() if n in frozen)


def test_a_model_object_a_tokenizer_and_callbacks(config, chats):
    class Count(TrainerCallback):
        steps = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.steps += 1

    tokenizer, counter = tiny_tokenizer(), Count()
    model = tiny_model(tokenizer, "qwen2")
    trainer = SFTTrainer(model, config(), train_dataset=chats, processing_class=tokenizer, callbacks=[counter])
    trainer.train()
    assert counter.steps == 2
    assert trainer.model is model


def test_formatting_func(tiny_folder, config):
    rows = Dataset.from_list([{"a": i, "b": i + 1} for i in range(6)])
    trainer = SFTTrainer(
        tiny_folder, config(), train_dataset=rows, formatting_func=lambda row: f"{row['a']} then {row['b']}"
    )
    tokenizer = trainer.processing_class
    assert tokenizer.decode(trainer.train_dataset[2]["input_ids"]) == "2 then 3<|im_end|>"


def test_resumed_equals_uninterrupted(tiny_folder, config, chats, tmp_path):
    def run(resume, **over):
        trainer = SFTTrainer(tiny_folder, config(max_steps=-1, num_train_epochs=2, **over), train_dataset=chats)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(None)
    run(None, save_strategy="steps", save_steps=4, save_total_limit=1)  # leaves checkpoint-6, the last
    run(None, save_strategy="steps", save_steps=4)
    resumed = run(str(tmp_path / "out" / "checkpoint-4"))
    assert losses(resumed)[-2:] == pytest.approx(losses(whole)[-2:], rel=1e-5)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_resume_without_a_checkpoint_is_an_error(tiny_folder, config, chats):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    with pytest.raises(TrlError, match="holds no complete checkpoint"):
        trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_cut_off_in_its_save_is_left_out(tiny_folder, config, chats, tmp_path, capsys):
    def run(resume):
        options = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
        trainer = SFTTrainer(tiny_folder, config(**options), train_dataset=chats)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(None)
    (tmp_path / "out" / "checkpoint-5" / "trainer_state.json").unlink()
    (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").write_text('{"epoch": 1.')
    resumed = run("true")
    assert "checkpoint-2; left out as incomplete: checkpoint-4, checkpoint-5" in capsys.readouterr().out
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-5)


def test_compute_metrics_sees_every_row_in_order(tiny_folder, config, chats):
    seen = {}

    def metrics(prediction):
        seen["labels"], seen["logits"] = prediction.label_ids, prediction.predictions
        return {"rows": len(prediction.label_ids)}

    trainer = SFTTrainer(
        tiny_folder,
        config(per_device_eval_batch_size=5, assistant_only_loss=True),
        train_dataset=chats,
        eval_dataset=chats,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    result = trainer.evaluate()
    assert result["eval_rows"] == 12
    for row, labels in zip(trainer.eval_dataset, seen["labels"], strict=True):
        assert labels[: row["length"]].tolist() == row["labels"]
        assert (labels[row["length"] :] == -100).all()
    assert seen["logits"].shape == seen["labels"].shape
    assert seen["logits"].dtype == np.int64


def test_compute_loss_func_is_used_and_scaled_like_ours(tiny_folder, config, chats):
    def loss(outputs, labels, num_items_in_batch):
        logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / num_items_in_batch

    ours = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    theirs = SFTTrainer(tiny_folder, config(), train_dataset=chats, compute_loss_func=loss)
    ours.train()
    theirs.train()
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)


def test_several_evaluation_sets(tiny_folder, config, chats):
    trainer = SFTTrainer(
        tiny_folder, config(), train_dataset=chats, eval_dataset={"a": chats, "b": chats.select(range(3))}
    )
    metrics = trainer.evaluate()
    assert {"eval_a_loss", "eval_b_loss"} <= metrics.keys()


def test_streams_train_on_rows_in_order_of_arrival(tiny_folder, config, chats):
    trainer = SFTTrainer(tiny_folder, config(max_steps=5), train_dataset=chats.to_iterable_dataset())
    trainer.train()
    assert trainer.state.global_step == 5  # 12 rows are 3 steps: the stream starts again
    assert losses(trainer)[3] < losses(trainer)[0]


def test_logged_numbers(tiny_folder, config, chats):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    trainer.train()
    entry = trainer.state.log_history[0]
    for name in [
        "loss",
        "grad_norm",
        "learning_rate",
        "epoch",
        "mean_token_accuracy",
        "num_tokens",
        "tokens_per_second",
        "padding_share",
        "tokens_per_second_per_device",
        "supervised_tokens_per_second",
        "peak_memory_gib",
    ]:
        assert name in entry, name
    assert entry["padding_share"] == 0.0  # documents lie end to end
    assert entry["tokens_per_second"] > entry["supervised_tokens_per_second"] > 0


def test_device_map_in_a_job_of_several_processes(tiny_folder, config, chats, monkeypatch):
    arguments = config(model_init_kwargs={"device_map": "auto"})
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(TrlError, match="device_map='auto' in a job of 2 processes"):
        SFTTrainer("/nowhere", arguments, train_dataset=chats)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "mse"}, "loss_type is 'mse'"),
        ({"packing": True, "max_length": None}, "packing needs max_length"),
        ({"packing_strategy": "best"}, "packing_strategy is 'best'"),
        ({"router_aux_loss_coef": 0.1}, "load-balancing loss is not part"),
        ({"fsdp": "full_shard"}, "fsdp is set"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"activation_offloading": True}, "no accelerator to offload from"),
        ({"global_batch_size": 5, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, "= 4"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": -1.0}, "learning_rate is -1"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"batch_eval_metrics": True}, "batch_eval_metrics is set"),
        ({"report_to": "no_such_tracker"}, "report_to names no_such_tracker"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(config, options, message):
    with pytest.raises(TrlError, match=message):
        config(**options)


def test_an_output_folder_that_cannot_be_written_to(tiny_folder, config, chats, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrlError, match="cannot be written to"):
        SFTTrainer(tiny_folder, config(output_dir=str(tmp_path / "file" / "out")), train_dataset=chats)


def test_an_unknown_attention_is_told_plainly(tiny_folder, config, chats):
    with pytest.raises(TrlError, match="cannot be loaded"):
        SFTTrainer(tiny_folder, config(model_init_kwargs={"attn_implementation": "foo"}), train_dataset=chats)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"train": None, "test": None}, r"several splits: 'train', 'test'"),
        ((row for row in ()), "is a generator"),
        ("rows.jsonl", "is a str"),
    ],
)
def test_rows_of_the_wrong_kind(tiny_folder, config, rows, message):
    with pytest.raises(TrlError, match=message):
        SFTTrainer(tiny_folder, config(), train_dataset=rows)


def test_a_list_of_rows_will_do(tiny_folder, config):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=[{"text": "a b c"}] * 4)
    assert len(trainer.train_dataset) == 4


def test_what_a_run_lacks_is_told_before_it_starts(tiny_folder, config, chats):
    with pytest.raises(TrlError, match="needs max_steps"):
        SFTTrainer(tiny_folder, config(max_steps=-1), train_dataset=chats.to_iterable_dataset())
    with pytest.raises(TrlError, match="there is no eval_dataset"):
        SFTTrainer(tiny_folder, config(eval_strategy="epoch"), train_dataset=chats)
    with pytest.raises(TrlError, match="fp16 is set"):
        config(fp16=True)


def test_a_formatting_func_that_raises_is_found(tiny_folder, config, chats):
    with pytest.raises(TrlError, match=r"KeyError: 'zz' at .*test_sft\.py:\d+ in <lambda>"):
        SFTTrainer(tiny_folder, config(), train_dataset=chats, formatting_func=lambda row: row["zz"])


def test_a_run_that_diverges_says_so(tiny_folder, config, chats, capsys):
    trainer = SFTTrainer(tiny_folder, config(learning_rate=1e9, max_steps=4), train_dataset=chats)
    trainer.train()
    assert any(loss != loss for loss in losses(trainer))
    assert capsys.readouterr().out.count("training diverged") == 1


def test_raw_rows_can_be_evaluated(tiny_folder, config, chats):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=chats, eval_dataset=chats)
    assert trainer.evaluate(chats)["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])


def test_a_chat_template_from_a_file(tiny_folder, config, chats, tmp_path):
    template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|im_end|>{% endfor %}"
    (tmp_path / "t.jinja").write_text(template)
    trainer = SFTTrainer(tiny_folder, config(chat_template_path=str(tmp_path / "t.jinja")), train_dataset=chats)
    text = trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"])
    assert text == "[user]What is 0+0?<|im_end|>[assistant]0<|im_end|>"


def test_adapter_arguments_without_an_adapter():
    from trl import ModelConfig

    with pytest.raises(TrlError, match="lora_r given, but no adapter is trained"):
        ModelConfig(lora_r=4)


def test_an_adapter_for_layers_that_do_not_exist(tiny_folder, config, chats):
    from peft import LoraConfig

    with pytest.raises(TrlError, match="does not fit the model"):
        SFTTrainer(tiny_folder, config(), train_dataset=chats, peft_config=LoraConfig(target_modules=["nope"]))


def test_a_frozen_model_is_refused(config, chats):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, "llama").requires_grad_(False)
    with pytest.raises(TrlError, match="no trainable parameter"):
        SFTTrainer(model, config(), train_dataset=chats, processing_class=tokenizer)


def test_gradient_checkpointing_is_on_and_not_reentrant(tiny_folder, config, chats):
    trainer = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    assert trainer.args.activation_checkpointing is True
    assert trainer.args.activation_checkpointing_kwargs["use_reentrant"] is False
    trainer.train()
    assert trainer.model.is_activation_checkpointing


def test_dtypes_in_force(tiny_folder, config, chats):
    """bf16 unset on a CPU is fp32; the weights are fp32 either way, and the loss is nearly the same."""
    plain = SFTTrainer(tiny_folder, config(), train_dataset=chats)
    mixed = SFTTrainer(tiny_folder, config(bf16=True), train_dataset=chats)
    assert (plain.args.bf16, mixed.args.bf16) == (False, True)
    plain.train()
    mixed.train()
    assert {p.dtype for p in mixed.model.parameters()} == {torch.float32}
    assert losses(mixed) == pytest.approx(losses(plain), rel=0.02)
    assert losses(mixed) != losses(plain)
