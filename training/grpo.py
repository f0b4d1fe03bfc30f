"""DR-GRPO from an SFT adapter, with the constraint-attribution reward (paper, section 4.2).

For a prompt's answers o_1..o_G with rewards R_i the advantage is A_i = R_i - mean(R), not divided by the deviation.
The loss is -1/(G L) sum_i sum_t min(r_it A_i, clip(r_it, 1-eps, 1+eps) A_i), with r the ratio of the token's
probabilities under the present and the sampling policy and L = `rollout.max_tokens`, a constant, instead of the
answers' own lengths (Dr. GRPO). There is no KL term (beta 0).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from ray.train.collective import barrier
from transformers import Trainer
from trl.trainer.grpo_config import GRPOConfig as TrlGrpoConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from actors.engine import build_engine
from synuc.rewards import Same
from training.adapter import write_merged
from training.attribution import RewardFunction, make_reward
from training.backbone import load_model, load_tokenizer, new_adapter, with_adapter
from training.config import Backbone, GrpoConfig, Reward, Rollout
from training.data import DataError, Encoder, grpo_examples
from training.folder import TrainFolder, add_lines
from training.matching import matcher
from training.rollouts import AdapterRollouts
from training.worker import arguments, first_rank, giving_up, run, world_size


def grpo_worker(job: dict[str, Any]) -> None:
    """One worker of a GRPO run. `job`: `config` (a GrpoConfig as data), `backbone`, `adapter` and `run`, its folder."""
    config = GrpoConfig.model_validate(job["config"])
    backbone, adapter = Backbone.model_validate(job["backbone"]), Path(job["adapter"])
    folder = TrainFolder(Path(job["run"]))
    with giving_up(folder), ExitStack() as engines:
        if config.merge:
            backbone = _merged(backbone, adapter, folder)
        tokenizer = load_tokenizer(backbone)
        encoder = Encoder(tokenizer, backbone.template)
        examples = grpo_examples(config.data, encoder)
        reward = make_reward(_same(config.reward), config.reward.alpha, config.reward.beta)

        def build(scratch: Path) -> Trainer:
            policy = _policy(config, backbone, adapter)
            rollouts: Any = None  # TRL's type says that prompts are texts; ours are messages
            if config.rollout.engine == "vllm_lora":
                rollouts = AdapterRollouts(
                    backbone,
                    config.rollout,
                    encoder,
                    max_prompt=config.data.max_tokens,
                    answers=config.optimizer.batch_size * config.rollout.generations // world_size(),
                    rank=cast(LoraConfig, policy.peft_config["default"]).r,
                    scratch=scratch,
                )
                engines.callback(rollouts.close)
            return GRPOTrainer(
                model=policy,
                reward_funcs=_recorded(reward, folder, config.rollout.generations),
                args=grpo_arguments(config, backbone, scratch, len(examples.rows), world_size()),
                train_dataset=Dataset.from_list(examples.rows),
                processing_class=tokenizer,
                rollout_func=rollouts,
            )

        run(folder, config, "DR-GRPO", examples, build)


def grpo_arguments(config: GrpoConfig, backbone: Backbone, scratch: Path, prompts: int, world: int) -> TrlGrpoConfig:
    """TRL's arguments of a DR-GRPO run on so many prompts with so many workers.

    Raises:
        Problem: the prompts don't fill one step, or a step can't be dealt out evenly.
    """
    if prompts < config.optimizer.batch_size:
        raise DataError(
            f"{prompts} prompts don't fill one step of optimizer.batch_size={config.optimizer.batch_size}; lower it"
        )
    generations = config.rollout.generations
    return TrlGrpoConfig(
        **arguments(config, scratch, config.optimizer.batch_size * generations, prompts * generations, world),
        **_rollout(config.rollout, config.data.max_tokens),
        chat_template_kwargs=backbone.template,
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
    )


def _same(reward: Reward) -> Same:
    judge = build_engine(reward.judge) if reward.judge else None
    return matcher(
        reward.matching,
        threshold=reward.threshold,
        model=reward.embedding_model,
        pooling=reward.pooling,
        engine=judge,
    )


def _merged(backbone: Backbone, adapter: Path, folder: TrainFolder) -> Backbone:
    """The backbone with the SFT adapter merged in, kept in the run's folder: the new adapter fits nothing else."""
    if first_rank() and not folder.base.exists():
        write_merged(backbone, adapter, folder.base)
    barrier()
    return backbone.model_copy(update={"model": str(folder.base)})


def _policy(config: GrpoConfig, backbone: Backbone, adapter: Path) -> PeftModel:
    """The SFT adapter made trainable, or a new adapter on the backbone that it was merged into."""
    model, zero = load_model(backbone), config.cluster.zero
    return new_adapter(model, config.lora, zero) if config.merge else with_adapter(model, adapter, True, zero)


def _rollout(rollout: Rollout, max_prompt: int) -> dict[str, Any]:
    """TRL's arguments for sampling. TRL resets vLLM's prefix cache at every change of the weights."""
    engine = rollout.engine
    if engine == "auto":
        engine = "vllm_colocate" if torch.cuda.is_available() else "generate"
    arguments: dict[str, Any] = {
        "num_generations": rollout.generations,
        "temperature": rollout.temperature,
        "max_completion_length": rollout.max_tokens,
        "use_vllm": engine in ("vllm_colocate", "vllm_server"),
    }
    if engine == "vllm_colocate":
        arguments |= {
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization,
            "vllm_max_model_length": max_prompt + rollout.max_tokens,
        }
    elif engine == "vllm_server":
        arguments |= {"vllm_mode": "server", "vllm_server_base_url": rollout.server}
    return arguments


def _recorded(reward: RewardFunction, folder: TrainFolder, generations: int) -> Callable[..., list[float | None]]:
    """`reward`, with the first group of each step kept in samples.jsonl for people to read."""

    def constraint_attribution(completions: list[Any], **columns: Any) -> list[float | None]:
        rewards = reward(completions=completions, **columns)
        if first_rank():
            group = range(min(generations, len(rewards)))
            answers = [{"answer": completions[n][0]["content"], "reward": rewards[n]} for n in group]
            step = columns["trainer_state"].global_step + 1
            add_lines(folder.samples, [{"step": step, "id": columns["id"][0], "answers": answers}])
        return [*rewards]

    return constraint_attribution
