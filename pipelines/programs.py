"""Which program makes a run's samples: the method, its contrastive variant, or one of the baselines."""

from __future__ import annotations

from pipelines.baselines import baize, common, coninstruct, designer, multiturninstruct, refed
from synuc import contrastive, prompts, synthesis
from synuc.config import ProgramName
from synuc.synthesis import SampleProgram


def program(name: ProgramName) -> SampleProgram:
    """The program of this name."""
    programs: dict[ProgramName, SampleProgram] = {
        "synuc": synthesis.synthesise,
        "contrastive": contrastive.synthesise,
        "baize": baize.synthesise,
        "multiturninstruct": multiturninstruct.synthesise,
        "refed": refed.synthesise,
        "coninstruct": coninstruct.synthesise,
        "designer": designer.synthesise,
    }
    return programs[name]


def prompts_version(name: ProgramName) -> str:
    """Twelve hex digits over all that the program shows a model."""
    return prompts.version() if name in ("synuc", "contrastive") else common.version()
