"""Every family of backbones, tiny and random: its checkpoint, its template, a step of each trainer, its adapter."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistral_common
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
    Qwen3_5ForConditionalGeneration,
)

from synuc.folder import RunError
from tests.tiny import CONFLICT, FAMILIES, Family, export_folder, grpo_run, save_family, sft_run, tokenizer_of
from training.adapter import AdapterError, merge_run
from training.backbone import BackboneError, load_model, load_tokenizer, with_adapter
from training.config import Backbone
from training.data import IGNORED, DataError, Encoder
from training.folder import TrainFolder

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.arange(100, 140).reshape(1, -1)
ASKED = [{"role": "user", "content": "Is there a conflict?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": CONFLICT}]
TEXT_CLASSES = {
    "qwen3.5": "Qwen3_5ForCausalLM",
    "qwen3.5-multimodal": "Qwen3_5ForCausalLM",
    "ministral-3": "Ministral3ForCausalLM",
    "llama-3.1": "LlamaForCausalLM",
}


@dataclass
class Trained:
    """A family's tiny backbone and the runs that trained it."""

    name: str
    backbone: Backbone
    sft: TrainFolder
    grpo: TrainFolder
    on_merged: TrainFolder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


def weights(folder: TrainFolder) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder.adapter / "adapter_model.safetensors")
    return tensors


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp(request.param)
    data = export_folder(root / "export")
    backbone = save_family(FAMILIES[request.param], root / "model")
    sft = sft_run(backbone, data, root / "sft", steps=3)
    with pytest.MonkeyPatch.context() as patch:
        # Random models never write a label: of the real rewards none would differ from another.
        patch.setattr("training.grpo.make_reward", lambda *_: by_length)
        grpo = grpo_run(sft, data, root / "grpo", steps=1, merge=False)
        on_merged = grpo_run(sft, data, root / "grpo-on-merged", steps=1, merge=True)
    return Trained(request.param, backbone, sft, grpo, on_merged)


def by_length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def test_sft_learns(trained: Trained) -> None:
    losses = [row["loss"] for row in trained.sft.rows()]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 1
    learned = weights(trained.sft)
    assert all(tensor.abs().sum() > 0 for tensor in learned.values())
    modules = {name.split(".")[-3] for name in learned}
    assert {"q_proj", "o_proj", "gate_proj", "down_proj"} <= modules
    if trained.name.startswith("qwen3.5"):
        assert {"in_proj_qkv", "in_proj_z", "out_proj"} <= modules
    assert all(name.startswith("base_model.model.model.layers.") for name in learned)


def test_grpo_goes_on_with_the_adapter(trained: Trained) -> None:
    assert trained.grpo.rows()[0]["grad_norm"] > 0
    before, after = weights(trained.sft), weights(trained.grpo)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    model: Any = with_adapter(load_model(trained.grpo.backbone()), trained.grpo.adapter)
    answers = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=4)
    assert answers.shape[1] > IDS.shape[1]
    assert not torch.allclose(logits(model), logits(load_model(trained.backbone)), atol=1e-2)


def test_grpo_on_a_merged_base_keeps_that_base(trained: Trained) -> None:
    run = trained.on_merged
    assert run.rows()[0]["grad_norm"] > 0
    base = load_model(run.backbone())
    started = with_adapter(load_model(trained.backbone), trained.sft.adapter)
    assert torch.allclose(logits(base), logits(started), atol=1e-4)
    with_adapter(base, run.adapter)
    with pytest.raises(BackboneError, match="was trained on another base"):
        with_adapter(load_model(trained.backbone), run.adapter)
    with pytest.raises(BackboneError, match="was trained on another base"):
        with_adapter(load_model(run.backbone()), trained.sft.adapter)


def test_a_merged_adapter_is_a_plain_model(trained: Trained) -> None:
    for run in (trained.sft, trained.on_merged):
        out = merge_run(run.path)
        auto: Any = AutoModelForCausalLM
        plain = auto.from_pretrained(out)
        assert type(plain).__name__ == TEXT_CLASSES[trained.name]
        adapted = with_adapter(load_model(run.backbone()), run.adapter)
        assert torch.allclose(logits(plain), logits(adapted), atol=1e-4)
        assert set(load_file(out / "model.safetensors")) == set(plain.state_dict())
        names = {path.name for path in out.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
        with pytest.raises(AdapterError, match="is there already"):
            merge_run(run.path)
    merged = Backbone(model=str(trained.sft.merged))
    assert load_tokenizer(merged).chat_template == load_tokenizer(trained.backbone).chat_template
    with pytest.raises(BackboneError, match="was trained on another base"):
        with_adapter(load_model(merged), trained.sft.adapter)


def test_a_run_without_an_adapter_is_not_merged(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no training run"):
        merge_run(tmp_path / "nothing")


def test_the_text_class_is_loaded_whole(trained: Trained) -> None:
    model = load_model(trained.backbone)
    assert type(model).__name__ == TEXT_CLASSES[trained.name]
    wrappers: dict[str, Any] = {
        "ministral-3": Mistral3ForConditionalGeneration,
        "qwen3.5-multimodal": Qwen3_5ForConditionalGeneration,
    }
    wrapper = wrappers.get(trained.name)
    if wrapper is not None:
        whole: PreTrainedModel = wrapper.from_pretrained(trained.backbone.model)
        assert torch.equal(logits(model), logits(whole))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_weight_is_an_error(name: str, tmp_path: Path) -> None:
    backbone = save_family(FAMILIES[name], tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    dropped = next(key for key in tensors if key.endswith("layers.1.mlp.up_proj.weight") and "vision" not in key)
    save_file({key: value for key, value in tensors.items() if key != dropped}, file, {"format": "pt"})
    with pytest.raises(BackboneError, match=r"lacks 1 weights, among them model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(backbone)


def test_names_of_newer_wrappers_are_understood(tmp_path: Path) -> None:
    backbone = save_family(FAMILIES["ministral-3"], tmp_path)
    before = logits(load_model(backbone))
    file = tmp_path / "model.safetensors"
    renamed = {
        key.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        ): value
        for key, value in load_file(file).items()
    }
    assert "model.language_model.norm.weight" in renamed
    save_file(renamed, file, {"format": "pt"})
    assert torch.equal(logits(load_model(backbone)), before)


def test_mistrals_own_tokenizer_file_does_no_harm(tmp_path: Path) -> None:
    backbone = save_family(FAMILIES["ministral-3"], tmp_path)
    shutil.copy(next(Path(mistral_common.__file__).parent.glob("data/tekken_*.json")), tmp_path / "tekken.json")
    assert load_tokenizer(backbone).chat_template == FAMILIES["ministral-3"].template.read_text("utf-8")


# Templates


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_the_loss_is_on_the_answer_and_its_end(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    encoder = Encoder(tokenizer, family.arguments)
    example = encoder.example(ANSWERED)
    prompt = encoder.ids(encoder.prompt(ASKED))
    assert example["input_ids"][: len(prompt)] == prompt
    assert example["labels"][: len(prompt)] == [IGNORED] * len(prompt)
    learned = example["labels"][len(prompt) :]
    assert learned == example["input_ids"][len(prompt) :]
    assert learned[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(learned) == CONFLICT + family.eos
    # What GRPO and vLLM make of the same messages.
    generated: Any = tokenizer.apply_chat_template(
        encoder.messages(ASKED), add_generation_prompt=True, return_dict=False, **family.arguments
    )
    assert generated == prompt


def test_control_tokens_of_users_are_text(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    encoder = Encoder(tokenizer, family.arguments)
    added = set(tokenizer.get_added_vocab().values())
    assert len(added) > 16

    def control(text: str) -> list[int]:
        prompt = encoder.prompt([{"role": "user", "content": text}])
        return [token for token in encoder.ids(prompt) if token in added]

    hostile = " ".join(tokenizer.get_added_vocab())
    assert control(hostile + hostile.replace(" ", "")) == control("Hello")


@pytest.mark.parametrize("template", ["qwen3.5", "qwen3.5-multimodal"])
def test_thinking_is_refused(template: str) -> None:
    encoder = Encoder(tokenizer_of(FAMILIES[template]), {"enable_thinking": True})
    with pytest.raises(DataError, match="enable_thinking: false"):
        encoder.example(ANSWERED)


def test_an_answer_that_is_no_text_of_the_template_is_refused() -> None:
    tokenizer = tokenizer_of(FAMILIES["llama-3.1"])
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with pytest.raises(DataError, match="right after the prompt"):
        Encoder(tokenizer, {}).example(ANSWERED)
