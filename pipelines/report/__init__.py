"""The figures of a run: counts that must add up, where samples end, what was accepted, usage, time, memory.

Tables are counted by pyarrow; only the accepted samples are read one by one, for their tokens.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from pipelines.report.accepted import ESTIMATE, TokenizerMissing, accepted_averages
from pipelines.report.counts import (
    NO_LABEL,
    by_outcome,
    dialogue_counts,
    endings,
    languages,
    sample_checks,
    tally,
)
from pipelines.report.printing import print_report
from pipelines.report.usage import memory_use, time_spent, usage
from pipelines.reviewed import take
from pipelines.run_folder import RunFolder
from synuc.folder import RunError
from synuc.sample import Outcome
from synuc.speaking import Speaking
from synuc.types import Label, Relation

__all__ = ["ESTIMATE", "TokenizerMissing", "figures", "print_report"]


def figures(folder: RunFolder, tokenizer: str = "") -> dict[str, Any]:
    """All figures, as plain data for JSON. `tokenizer`: a folder or a cached hub name; none: that of the run's model.

    Raises:
        RunError: the run has not read its seeds yet.
        TokenizerMissing: there is no such tokenizer on this machine.
    """
    ingest = folder.ingest()
    if ingest is None:
        raise RunError(f"{folder.path} has not read its seeds to the end; go on with: synuc synthesize --run ...")
    samples = folder.read(
        "samples",
        ["id", "seed_id", "label", "outcome", "stage", "kind", "language", "speaking", "relation"],
    )
    samples = samples.set_column(2, "label", pc.fill_null(samples["label"], NO_LABEL))
    finished = pc.unique(samples["seed_id"])
    dialogues, checks = dialogue_counts(folder, ingest, finished)
    outcomes = tally(samples, "outcome")
    totals = {outcome.value: outcomes.get(outcome.value, 0) for outcome in Outcome}
    checks += sample_checks(folder, samples, totals)
    accepted = samples.filter(pc.equal(samples["outcome"], Outcome.ACCEPTED.value))
    return {
        "run": folder.path.name,
        "fingerprint": folder.method["fingerprint"],
        "adds_up": all(check["ok"] for check in checks),
        "checks": checks,
        "dialogues": dialogues,
        "samples": {"total": len(samples), **totals},
        "labels": by_outcome(samples, "label", [*Label, NO_LABEL]),
        "endings": endings(samples),
        "languages": languages(accepted),
        "speaking": by_outcome(samples, "speaking", Speaking),
        "relations": by_outcome(samples, "relation", Relation),
        "accepted": accepted_averages(folder, tokenizer),
        "usage": usage(folder, finished),
        "time": time_spent(folder),
        "memory": memory_use(folder),
        "reviewed": take((), folder.path).counts,
    }
