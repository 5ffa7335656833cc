"""Every private name of another library that this package relies on, and why.

Nothing here is guaranteed to stay: `tests/engine/test_upstream.py` fails where a name is gone, and where the package
uses a private name that is not listed. Versions of these libraries are bounded in `pyproject.toml` because of this
file.
"""

from __future__ import annotations

# "module:owner" -> {private name: what it is used for}
PRIVATE_NAMES: dict[str, dict[str, str]] = {
    "transformers.trainer:Trainer": {
        "_prepare_inputs": "moves a batch to the device during evaluation",
        "_maybe_log_save_evaluate": "overridden: every step is recorded with its loss and gradient norm",
        "_initial_global_step": "the step that this call of train began at",
        "_save_checkpoint": "overridden: the position is saved with a checkpoint",
        "_get_output_dir": "the folder that checkpoints are written to",
    },
    "transformers:TrainingArguments": {
        "_VALID_DICT_FIELDS": "extended: options that take a dictionary as JSON",
        "_n_gpu": "set to 1: a single process never becomes torch's DataParallel",
    },
    "accelerate:Accelerator": {
        "_models": "whether training has prepared the model for its precision",
    },
    "transformers:PreTrainedModel": {
        "_hf_peft_config_loaded": "whether from_pretrained put an adapter on the model",
        "_supports_attention_backend": "whether a model goes through the attention interface",
    },
    "transformers:PretrainedConfig": {
        "_attn_implementation": "which attention a model uses",
    },
    "argparse:ArgumentParser": {
        "_actions": "options of a parser, to suggest near names",
    },
    "datasets:Dataset": {
        "_fingerprint": "recorded with a checkpoint: resuming on other rows is refused",
    },
}
