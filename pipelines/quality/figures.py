"""All quality figures of the accepted samples of a run or an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.quality.balance import balance
from pipelines.quality.difficulty import Difficulty, attached
from pipelines.quality.diversity import diversity, near_duplicates, sentences
from pipelines.quality.giveaways import giveaways
from pipelines.quality.rows import at_most, rows
from pipelines.run_folder import RunFolder
from synuc.types import Label

LIMIT = 20_000
"""Samples whose texts are compared; of more, so many are drawn by lot of their ids."""


def quality(source: RunFolder | Path, difficulty: Mapping[str, Difficulty] | None = None) -> dict[str, Any]:
    """The figures as plain data for JSON: `balance`, `diversity` per language and label, `dialogues`, `giveaways`, and
    `difficulty` if one is given. All samples count for balance and difficulty, at most `LIMIT` for texts (`compared`).

    `source`: a run, or an export's `uc-data.jsonl`.

    Raises:
        NotUcData: the file isn't an export's.
        DifficultyError: no sample here has one of the difficulties.
    """
    some = at_most(LIMIT, rows(source))
    languages = sorted({row.language for row in some})
    follow_ups = {
        language: {
            name: [row.follow_up for row in some if row.language == language and name in ("all", row.label)]
            for name in ("all", *Label)
        }
        for language in languages
    }
    histories = {row.seed_id: row.users for row in some}
    return {
        "compared": len(some),
        "balance": balance(rows(source)),
        "diversity": {
            language: {
                str(name): diversity(texts, meaning=sentences() if language == "en" else None)
                for name, texts in parts.items()
                if texts
            }
            for language, parts in follow_ups.items()
        },
        "dialogues": {"seeds": len(histories), "near_duplicates": near_duplicates(list(histories.values()))},
        "giveaways": giveaways(some),
        "difficulty": attached(rows(source), difficulty) if difficulty is not None else None,
    }
