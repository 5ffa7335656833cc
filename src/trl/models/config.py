"""Which model, and what is trained of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig


@dataclass
class ModelConfig:
    """Arguments about the model, its precision, adapters and quantisation."""

    model_name_or_path: str | None = None
    """Folder or hub name of the model to start from."""
    model_revision: str = "main"
    """Branch, tag or commit of a model on the hub."""
    dtype: str | None = "float32"
    """Type of the weights: float32, bfloat16, float16 or auto (as saved). With float32 and bf16 autocast the optimizer
    works on full-precision weights."""
    attn_implementation: str | None = None
    """Attention of transformers: sdpa, eager, flash_attention_2, ... By default SDPA, document by document."""
    use_peft: bool = False
    """Train a LoRA adapter instead of the whole model."""
    lora_r: int = 16
    """Rank of the adapter."""
    lora_alpha: int = 32
    """Scale of the adapter: its output is multiplied by lora_alpha / lora_r."""
    lora_dropout: float = 0.05
    """Dropout before the adapter."""
    lora_target_modules: list[str] | None = None
    """Names of the layers that get an adapter; all-linear for every linear layer. By default what PEFT knows for the
    model."""
    lora_target_parameters: list[str] | None = None
    """Names of parameters (not layers) that get an adapter, e.g. stacked experts."""
    lora_modules_to_save: list[str] | None = None
    """Layers that are trained whole and saved with the adapter."""
    lora_task_type: str = "CAUSAL_LM"
    """Task type of the adapter: CAUSAL_LM or SEQ_CLS."""
    use_rslora: bool = False
    """Rank-stabilised LoRA: scale by lora_alpha / sqrt(lora_r)."""
    use_dora: bool = False
    """Weight-decomposed LoRA (DoRA)."""
    load_in_8bit: bool = False
    """Load the base model with 8-bit weights (bitsandbytes)."""
    load_in_4bit: bool = False
    """Load the base model with 4-bit weights (bitsandbytes): QLoRA with use_peft."""
    bnb_4bit_quant_type: str = "nf4"
    """Data type of 4-bit weights: nf4 or fp4."""
    use_bnb_nested_quant: bool = False
    """Quantise the quantisation constants as well."""
    bnb_4bit_quant_storage: str | None = None
    """Type in which 4-bit weights are stored."""

    def __post_init__(self) -> None:
        if self.load_in_8bit and self.load_in_4bit:
            raise ConfigError("load_in_8bit and load_in_4bit are both set", fix="keep one of them")
        if not self.use_peft:
            given = [f.name for f in fields(self) if f.name.startswith("lora_") and getattr(self, f.name) != f.default]
            given += [name for name in ("use_rslora", "use_dora") if getattr(self, name)]
            if given:
                raise ConfigError(f"{', '.join(given)} given, but no adapter is trained", fix="set use_peft")
        # One name on the command line arrives as a list of one.
        if self.lora_target_modules is not None and len(self.lora_target_modules) == 1:
            self.lora_target_modules = self.lora_target_modules[0]  # type: ignore[assignment]


def get_peft_config(model_args: ModelConfig) -> PeftConfig | None:
    """The LoRA configuration that the arguments describe; None without `use_peft`."""
    if not model_args.use_peft:
        return None
    from peft import LoraConfig

    return LoraConfig(
        task_type=model_args.lora_task_type,
        r=model_args.lora_r,
        lora_alpha=model_args.lora_alpha,
        lora_dropout=model_args.lora_dropout,
        target_modules=model_args.lora_target_modules,
        target_parameters=model_args.lora_target_parameters,
        modules_to_save=model_args.lora_modules_to_save,
        use_rslora=model_args.use_rslora,
        use_dora=model_args.use_dora,
        bias="none",
    )


def get_quantization_config(model_args: ModelConfig) -> BitsAndBytesConfig | None:
    """The bitsandbytes configuration that the arguments describe; None without `load_in_8bit` or `load_in_4bit`."""
    if not (model_args.load_in_4bit or model_args.load_in_8bit):
        return None
    from transformers import BitsAndBytesConfig

    if model_args.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True)
    compute = "bfloat16" if model_args.dtype in (None, "auto") else model_args.dtype
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_type=model_args.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=model_args.use_bnb_nested_quant,
        bnb_4bit_quant_storage=model_args.bnb_4bit_quant_storage,
    )
