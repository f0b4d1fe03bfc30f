"""What a dataset card says of how its samples were made: by which program, models and settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synuc.config import ProgramName, is_place

EMBEDDED = "SmolLM2-135M-Instruct"

ABLATIONS = {
    "task_filter": "the task filter",
    "memory": "the memory and its schemas",
    "trajectory_update": "the update of the memory",
    "confidence_filter": "the confidence filter",
    "constraint_verifier": "the constraint verifier (one direct check instead)",
}
SYNUC = "SynUC ([paper](https://arxiv.org/abs/2609.19155))"
BASELINE = f"It is a baseline that {SYNUC} is compared with: no verifier judged the samples."
HOW: dict[ProgramName, str] = {
    "synuc": f"""\
With {SYNUC}: requirements are extracted from real chats, a conflicting one is
generated along one of Hymes's SPEAKING dimensions, a follow-up is written, and a verifier judges it in two stages.""",
    "contrastive": f"""\
With {SYNUC}, in triplets: as there, requirements are extracted from real chats and a
conflicting one is generated; then the follow-ups of all labels are written together, on the same things and alike but
for their label, and a verifier judges each in two stages.""",
    "baize": f"""\
With Baize (Xu et al. 2023), adapted: a model goes on with real chats, playing user and assistant, and writes the
follow-up of a given label.
{BASELINE}""",
    "multiturninstruct": f"""\
By the dimensions of MultiTurnInstruct (Han et al. 2025), adapted: along one of them, how a message stands to earlier
instructions, a follow-up of a given label to a real chat is written.
{BASELINE}""",
    "refed": f"""\
With reference-level feedback (REFED, Mehri et al. 2025), adapted: what is good about a few labelled samples guides the
writing of follow-ups to real chats.
{BASELINE}""",
    "coninstruct": f"""\
By the kinds of constraints of ConInstruct (He et al. 2025), adapted: a pair of requirements of one kind is made for a
real chat, then the follow-up that brings in the second one.
{BASELINE}""",
    "designer": f"""\
With design logics (DESIGNER, 2025), adapted: how a few labelled samples were designed is abstracted, and applied to
real chats.
{BASELINE}""",
}
VERIFIED: tuple[ProgramName, ...] = ("synuc", "contrastive")
"""The programs with schemas, a memory and a verifier; baselines have none of them."""


def model_name(engine: Mapping[str, Any]) -> str:
    """The model of a role; of a folder on this machine, which is nobody else's business, the last part."""
    name = str(engine["model"])
    if name == "embedded":
        name = EMBEDDED
    elif is_place(name):
        name = Path(name).name
    return f"{name} with adapter {Path(engine['adapter']).name}" if engine["adapter"] else name


def models_of(method: Mapping[str, Any]) -> dict[str, str]:
    """The models by the roles that a run's program has calls for."""
    verified = method["method"]["program"] in VERIFIED
    engines = method["engines"].items()
    return {role: model_name(engine) for role, engine in engines if verified or role == "generator"}


def made_with(method: Mapping[str, Any]) -> dict[str, str]:
    """Models and settings by name, without those that had no say in this run."""
    settings = method["method"]
    facts = {
        **models_of(method),
        "prompts": f"version {method['prompts']}",
        "method": f"{settings['program']}, fingerprint {method['fingerprint']}",
    }
    verified = settings["program"] in VERIFIED
    if verified and settings["memory"]:
        facts["retrieval"] = settings["retrieval"]
    if verified and settings["confidence_filter"]:
        facts["tau"] = f"{settings['tau']}: least confidence of the verifier (0 to 100)"
    if settings["program"] != "contrastive":
        facts["alpha"] = f"{settings['alpha']}: share of eligible dialogues that also give an ND sample"
    if verified and settings["memory"] and settings["trajectory_update"]:
        facts["K"] = f"{settings['k']}: successes, and failures, that the memory keeps per schema"
    switches = ABLATIONS if verified else {"task_filter": ABLATIONS["task_filter"]}
    if off := [words for key, words in switches.items() if not settings[key]]:
        facts["switched off"] = "; ".join(off)
    return facts
