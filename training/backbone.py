"""Loads backbones and adapters: tokenizer, text model, LoRA.

A multimodal checkpoint is trained and served by its text model alone: Qwen3.5's by the auto class, Ministral-3's by
the class inside its wrapper. vLLM takes the adapters of both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from actors.embedded import EmbeddedModelMissing, embedded_model
from actors.vllm_engine import cpu_dtype
from synuc.config import is_place
from synuc.problem import Problem
from training.config import Backbone, Lora

# Names in the checkpoints of text models that stand inside a wrapper, as transformers wrote them over time.
WRAPPED = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
BASE_FILE = "base.json"
MERGED = "synuc_merged"
"""The key in a model's config.json that names the adapters merged into it."""


class BackboneError(Problem):
    """A backbone or adapter that can't be used; the message says what to do."""


def folder_of(model: str) -> str:
    """The folder or hub name of a backbone; `embedded` is made usable at the first call.

    Raises:
        BackboneError: there is no such folder, or the embedded model can't be had.
    """
    if is_place(model) and not Path(model).expanduser().is_dir():
        raise BackboneError(f"backbone.model={model}: no such folder")
    if model != "embedded":
        return model
    try:
        return str(embedded_model())
    except EmbeddedModelMissing as error:
        raise BackboneError(str(error)) from None


def load_tokenizer(backbone: Backbone) -> PreTrainedTokenizerBase:
    """The backbone's tokenizer; one without a pad token pads with its end token (padding never counts in a loss).

    Raises:
        BackboneError: there is none, or it has no chat template.
    """
    # Where mistral-common is installed, transformers takes its tokenizer, which has no template, for Mistral's models.
    tokenizer: PreTrainedTokenizerBase = _loaded(AutoTokenizer, backbone.model, mistral_format=False)
    if not tokenizer.chat_template:
        raise BackboneError(f"backbone.model={backbone.model} has no chat template; take the instruct version")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(backbone: Backbone) -> PreTrainedModel:
    """The backbone's text model.

    Raises:
        BackboneError: there is none, or the checkpoint lacks some of its weights.
    """
    dtype: str = backbone.dtype
    if dtype == "auto":
        dtype = "bfloat16" if torch.cuda.is_available() else cpu_dtype()
    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype), "output_loading_info": True}
    config = _loaded(AutoConfig, backbone.model)
    auto: Any = AutoModelForCausalLM
    if type(config) not in auto._model_mapping:  # a wrapper that has no text class of its own, as Ministral-3's
        text = config.get_text_config()
        auto = auto._model_mapping[type(text)]
        arguments |= {"config": text, "key_mapping": WRAPPED}
    model, info = _loaded(auto, backbone.model, **arguments)
    if missing := sorted(info["missing_keys"]):
        raise BackboneError(f"backbone.model={backbone.model} lacks {len(missing)} weights, among them {missing[0]}")
    loaded: PreTrainedModel = model
    return loaded


def _loaded(auto: Any, model: str, **arguments: Any) -> Any:
    try:
        return auto.from_pretrained(folder_of(model), **arguments)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BackboneError(
            f"backbone.model={model} can't be loaded: {reason}\nName a model folder, or a hub name where the hub is "
            "reachable."
        ) from None


def new_adapter(model: PreTrainedModel, lora: Lora, zero: int = 0) -> PeftModel:
    """The model with a fresh LoRA adapter, the rest frozen.

    The adapter is float32, also on a bfloat16 model; but ZeRO stage 3 gathers all weights in one type, the model's.
    """
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config, autocast_adapter_dtype=zero < 3)
    assert isinstance(adapted, PeftModel)
    return adapted


def with_adapter(model: PreTrainedModel, adapter: Path, trainable: bool = False, zero: int = 0) -> PeftModel:
    """The model with the adapter in a folder on top, in the type that `new_adapter` gives one.

    Raises:
        BackboneError: no adapter is there, or it was trained on another base.
    """
    if not (adapter / "adapter_config.json").is_file():
        raise BackboneError(f"{adapter} holds no adapter (no adapter_config.json)")
    base = adapter / BASE_FILE
    if base.is_file() and (trained_on := json.loads(base.read_text("utf-8"))) != base_facts(model):
        raise BackboneError(
            f"{adapter} was trained on another base: {trained_on['class']} ({trained_on['config']}), "
            f"not {type(model).__name__} ({base_facts(model)['config']}); use the backbone it was trained on"
        )
    try:
        adapted = PeftModel.from_pretrained(
            model, str(adapter), is_trainable=trainable, autocast_adapter_dtype=zero < 3
        )
    except RuntimeError as error:  # weights of other shapes
        reason = " ".join(str(error).split())[:300]
        raise BackboneError(f"{adapter} doesn't fit {type(model).__name__}: {reason}") from None
    for config in adapted.peft_config.values():
        # PEFT looks there at every save. The name in the folder may be that of another machine, or of the hub.
        config.base_model_name_or_path = model.name_or_path
    return adapted


def merge(model: PreTrainedModel, adapter: Path) -> PreTrainedModel:
    """The model with the adapter in a folder merged into its weights, and named in its config. Raises BackboneError."""
    merged: Any = with_adapter(model, adapter).merge_and_unload(safe_merge=True)
    with (adapter / SAFETENSORS_WEIGHTS_NAME).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    setattr(merged.config, MERGED, [*getattr(merged.config, MERGED, []), digest])
    whole: PreTrainedModel = merged
    return whole


def base_facts(model: PreTrainedModel) -> dict[str, str]:
    """What an adapter remembers of its base: the class, and a hash of what shapes its weights and was merged in."""
    config = model.config.get_text_config()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    more = ("head_dim", "vocab_size", "model_type", MERGED)
    shape = {name: getattr(config, name, None) for name in (*names, *more)}
    return {
        "class": type(model).__name__,
        "config": hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12],
    }
