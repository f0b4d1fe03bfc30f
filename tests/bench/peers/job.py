"""What every peer is asked to do: eight calls about each dialogue, each of which shows the answers before it.

Read by our side and, in their own environments, by the peers: imports nothing but the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from synuc import replies

CALLS: dict[str, type[BaseModel]] = {
    "tasks": replies.Tasks,
    "constraints": replies.HistoricalConstraints,
    "match": replies.match_reply(replies.ids("c", range(3))),
    "generate": replies.Generated,
    "realize": replies.Message,
    "verify_anchor": replies.AnchorVerdict,
    "extract_new": replies.NewConstraints,
    "judge_global": replies.judgment_reply(replies.ids("n", range(3))),
}
"""The calls in their order, with the models of their answers."""


@dataclass(frozen=True)
class Job:
    """The endpoint, how many calls may be in flight, the texts, and the file of the dialogues: JSON lines of `text`."""

    url: str
    in_flight: int
    system: str
    jobs: Mapping[str, str]
    schemas: Mapping[str, dict[str, Any]]
    dialogues: str
    folder: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def read(path: str) -> Job:
        return Job(**json.loads(Path(path).read_text("utf-8")))

    def texts(self) -> list[str]:
        """The dialogues, as the prompts show them."""
        with Path(self.dialogues).open(encoding="utf-8") as file:
            return [json.loads(line)["text"] for line in file]

    def template(self, call: str) -> str:
        """The user message of a call, for Jinja: the dialogue, the answers before, the job."""
        answers = "\n".join(f"{name}: {{{{ {name} }}}}" for name in before(call))
        return f"{{{{ text }}}}\n# Answers so far\n{answers}\n\n{self.jobs[call]}"

    def user_message(self, call: str, row: Mapping[str, Any]) -> str:
        """The same, filled in."""
        answers = "\n".join(f"{name}: {row[name]}" for name in before(call))
        return f"{row['text']}\n# Answers so far\n{answers}\n\n{self.jobs[call]}"

    def response_format(self, call: str) -> dict[str, Any]:
        """What constrains the answer, as the endpoint takes it."""
        schema = {"name": call, "schema": self.schemas[call], "strict": True}
        return {"type": "json_schema", "json_schema": schema}


def before(call: str) -> Sequence[str]:
    """The calls before this one."""
    names = list(CALLS)
    return names[: names.index(call)]


def done(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how many dialogues have an answer to the last call, as the end of what a peer says."""
    print(json.dumps({"finished": sum(bool(row.get(list(CALLS)[-1])) for row in rows)}), flush=True)
