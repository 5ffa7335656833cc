"""Supervised fine-tuning from a script of one's own: what `trl sft` does, with every part in reach.

python examples/make_tiny.py
torchrun --nproc_per_node 2 examples/sft.py --config examples/sft.yaml
"""

from __future__ import annotations

from datasets import load_dataset

from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config


def main() -> None:
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script, config, model = parser.parse_args_and_config()
    rows = load_dataset(script.dataset_name, name=script.dataset_config)
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=config,
        train_dataset=rows[script.dataset_train_split],
        eval_dataset=rows[script.dataset_test_split] if config.eval_strategy != "no" else None,
        peft_config=get_peft_config(model),
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
