"""Configurations of training: the shipped files compose, the defaults are the paper's, errors say what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from synuc.layers import Config, ConfigError, compose
from training.backbone import BackboneError, folder_of
from training.config import GrpoConfig, SftConfig

CONFIGS = Path(__file__).parents[2] / "configs"
SFT, GRPO, CPU = (CONFIGS / "train" / f"{name}.yaml" for name in ("sft", "grpo", "cpu"))
BACKBONES = sorted((CONFIGS / "backbones").glob("*.yaml"))
SMALL = CONFIGS / "backbones" / "smollm2-135m.yaml"
JUDGE = "reward.judge={kind: openai, base_url: 'http://127.0.0.1:9/v1', model: m}"


def error(model: type[Config], files: list[Path], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(model, files, overrides)
    return str(caught.value)


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda file: file.stem)
def test_every_backbone_composes_with_sft(backbone: Path) -> None:
    config = compose(SftConfig, [SFT, backbone])
    thinks = config.backbone.model.startswith("Qwen/")
    assert config.backbone.template == ({"enable_thinking": False} if thinks else {})
    assert compose(SftConfig, [SFT, CPU, backbone]).optimizer.batch_size == 4


def test_every_file_for_training_composes() -> None:
    assert {file.name for file in (CONFIGS / "train").glob("*.yaml")} == {SFT.name, GRPO.name, CPU.name}
    assert compose(GrpoConfig, [GRPO, CPU]).record.save_every == 10


def test_the_defaults_are_the_papers() -> None:
    sft, grpo = compose(SftConfig, [SFT, SMALL]), compose(GrpoConfig, [GRPO])
    for config in (sft, grpo):
        assert (config.lora.rank, config.lora.alpha, config.lora.dropout, config.lora.targets) == (
            8,
            16,
            0,
            "all-linear",
        )
    assert (sft.optimizer.learning_rate, sft.optimizer.epochs, sft.data.max_tokens) == (1e-4, 4, 8192)
    assert (grpo.optimizer.learning_rate, grpo.rollout.generations, grpo.rollout.temperature) == (5e-7, 4, 0.8)
    assert (grpo.reward.alpha, grpo.reward.beta) == (0.2, 0.4)
    assert grpo.data.max_tokens + grpo.rollout.max_tokens == 8192


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("optimizer: {learn_rate: 1}\n", "utf-8")
    says = error(SftConfig, [SFT, SMALL, file])
    assert says == f"{file}: unknown key optimizer.learn_rate; did you mean optimizer.learning_rate?"
    assert "did you mean rollout.generations?" in error(GrpoConfig, [GRPO], "rollout.generation=8")


def test_a_backbone_must_be_named() -> None:
    assert "backbone is missing: say which one, e.g. --backbone configs/backbones/" in error(SftConfig, [SFT])
    assert "unknown key backbone" in error(GrpoConfig, [GRPO, SMALL])


def test_no_checkpoint_may_hold_a_loss_that_nobody_saw() -> None:
    says = error(SftConfig, [SFT, SMALL], "record={log_every: 20, save_every: 50}")
    assert "record: save_every must be a multiple of log_every" in says
    assert compose(SftConfig, [SFT, SMALL], ["record={log_every: 25, save_every: 50}"])


def test_matching_by_a_judge_needs_one() -> None:
    assert "needs reward.judge, e.g. {kind: openai" in error(GrpoConfig, [GRPO], "reward.matching=judge")
    config = compose(GrpoConfig, [GRPO], ["reward.matching=judge", JUDGE])
    assert config.reward.judge is not None
    assert config.reward.judge.model == "m"


@pytest.mark.parametrize("override", ["optimizer.learning_rate=0", "rollout.generations=1", "cluster.zero=1"])
def test_values_that_make_no_sense_are_refused(override: str) -> None:
    assert f"--set {override}: {override.split('=')[0]}:" in error(GrpoConfig, [GRPO], override)


def test_a_backbone_folder_that_is_not_there_is_named_before_anything_starts() -> None:
    with pytest.raises(BackboneError, match="/no/such/folder: no such folder"):
        folder_of("/no/such/folder")
