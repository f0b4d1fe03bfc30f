"""Records as Argilla 2 reads and writes them (`dataset.records.from_json`).

The data set needs a chat field `dialogue`, a text field `follow_up`, a label question `label` (ND, ER, IC) and a text
question `rationale` that may stay empty. A record's `id` is the item's number in the project, which leads see beside
its key: the key of a synthetic sample ends in its label.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from review.content import Content
from review.forms import Labelled, Step
from review.models import Item
from review.states import State


def argilla_records(items: Iterable[tuple[Item, Content, State]]) -> Iterator[dict[str, Any]]:
    """Every item as a record; once it is finished, with the labels that people have given it as responses."""
    for item, content, state in items:
        said = [
            pair for turn in content.dialogue.turns for pair in (("user", turn.user), ("assistant", turn.assistant))
        ]
        system = [("system", content.dialogue.system)] if content.dialogue.system else []
        acts = () if state.open else state.at(Step.LABEL)
        labels = [(_user(act.person), act.form) for act in acts if isinstance(act.form, Labelled)]
        yield {
            "id": str(item.id),
            "fields": {
                "dialogue": [{"role": role, "content": text} for role, text in [*system, *said]],
                "follow_up": content.follow_up,
            },
            "metadata": {"language": item.language, "subset": content.subset},
            "suggestions": {},
            "responses": {
                "label": [{"value": form.label.value, "user_id": user} for user, form in labels],
                "rationale": [{"value": form.why.text, "user_id": user} for user, form in labels if form.why],
            },
        }


def _user(person: int) -> str:
    """An id of the form that Argilla wants, the same for the same person."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"synuc-review/person/{person}"))
