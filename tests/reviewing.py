"""A review project on a real server, for tests: people with signed-in clients, and dialogues to judge."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn

from review.app import create_app
from review.config import ReviewConfig, save_project
from review.content import Content, Entry
from review.database import Database
from review.forms import Kind, Why
from review.people import PersonEntry
from review.projects import create
from synuc.types import Dialogue, Label, Turn

ROLES = {
    "Ana": ("annotator",),
    "Bo": ("annotator",),
    "Cai": ("annotator", "adjudicator", "evaluator"),
    "Dee": ("adjudicator", "evaluator"),
    "Eli": ("evaluator",),
    "Fay": ("evaluator",),
    "Lea": ("lead",),
}
HOSTILE = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script> {{7*7}} <|im_end|>"
WAIT_S = 300.0
"""For a server on a machine that is busy with something else."""

RECORD: dict[str, Any] = {
    "goal": "Plan a family weekend.",
    "target": "IC",
    "why": {"text": "Kids can't come to a late show."},
    "follow_up": "Great, please add a wine tasting and a late-night jazz show for all of us.",
}


def entries(number: int, kind: Kind = Kind.BENCHMARK, turns: int = 2) -> tuple[Entry, ...]:
    """Items whose texts are hostile; every other one is Chinese."""
    return tuple(_entry(n, kind, turns) for n in range(number))


def _entry(n: int, kind: Kind, turns: int) -> Entry:
    chinese = n % 2 == 1
    said = "帮我们一家安排一个安静的周末。" if chinese else f"Plan a quiet weekend for my wife and kids. {HOSTILE}"
    dialogue = Dialogue(
        turns=tuple(Turn(user=f"{said} ({n}/{turn})", assistant=f"Gladly: a farm. {turn}") for turn in range(turns))
    )
    pairwise = kind is Kind.PAIRWISE
    content = Content(
        dialogue=dialogue,
        follow_up="再加一顿午饭。" if chinese else f"Add a lunch, please. {HOSTILE}",
        subset="test",
        task="planning",
        synthetic=list(Label)[n % 3] if kind is Kind.SPOT_CHECK else None,
        why=Why(text="the kids") if pairwise else None,
        answers=(f"first reasoning {n}", f"second reasoning {n}") if pairwise else None,
    )
    return Entry(key=f"item-{n:05}", language="zh" if chinese else "en", content=content)


def a_project(
    db: str,
    items: Sequence[Entry],
    kind: Kind = Kind.BENCHMARK,
    name: str = "trial",
    roles: dict[str, tuple[str, ...]] | None = None,
    **settings: Any,
) -> tuple[ReviewConfig, dict[str, str]]:
    """A project in a database; its settings, and everybody's token."""
    config = ReviewConfig.model_validate({"name": name, "kind": kind, "db": db, **settings})
    people = [PersonEntry.model_validate({"name": who, "roles": does}) for who, does in (roles or ROLES).items()]
    database = Database(db)
    with database.writing() as session:
        links = create(session, config, items, people, seed=0, about={"from": "a test"})
    database.close()
    return config, {who: link.partition("#")[2] for who, link in links.items()}


@dataclass
class Team:
    """The people of a running project."""

    url: str
    tokens: dict[str, str]
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Person:
        if name not in self.clients:
            client = httpx.Client(base_url=self.url, timeout=WAIT_S)
            me = client.post("/api/session", json={"token": self.tokens[name]})
            me.raise_for_status()
            client.headers["X-CSRF-Token"] = me.json()["csrf"]
            self.clients[name] = client
        return Person(self.clients[name])

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@dataclass
class Person:
    """A signed-in client."""

    client: httpx.Client

    def next(self) -> dict[str, Any]:
        """The task that is given out. Fails where there is none."""
        task: dict[str, Any] = self.client.post("/api/next", json={}).raise_for_status().json()
        assert task is not None
        return task

    def idle(self) -> bool:
        return self.client.post("/api/next", json={}).raise_for_status().json() is None

    def answer(self, task: dict[str, Any], form: dict[str, Any]) -> httpx.Response:
        sent = {"step": task["step"], "round": task["round"], "form": form}
        return self.client.post(f"/api/items/{task['item']['id']}/answer", json=sent)

    def label(self, label: str, step: str = "label") -> dict[str, Any]:
        """Take the next task and label it."""
        task = self.next()
        assert task["step"] == step
        why = {"text": f"because it is {label}"} if label != "ND" else None
        self.answer(task, {"label": label, "why": why}).raise_for_status()
        return task

    def give(self, step: str, form: dict[str, Any]) -> dict[str, Any]:
        """Take the next task, of that step, and answer it."""
        task = self.next()
        assert task["step"] == step, task["step"]
        if step == "rewrite":
            form = {**form, "history": task["item"]["history"]}
        self.answer(task, form).raise_for_status()
        return task


@contextmanager
def running(config: ReviewConfig, tokens: dict[str, str]) -> Iterator[Team]:
    """The project on a server in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(config, Database(config.db)), log_level="warning"))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    team = Team(f"http://127.0.0.1:{listening.getsockname()[1]}", tokens)
    try:
        wait_for(lambda: server.started)
        yield team
    finally:
        team.close()
        server.should_exit = True
        thread.join()


@contextmanager
def serving_process(folder: Path, config: ReviewConfig, port: int = 0) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`synuc review serve` as a process of its own, and where it listens: at a free port, unless one is named."""
    save_project(folder, config)
    with socket.create_server(("127.0.0.1", port)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "synuc.cli", "review", "serve", "--project", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], env=os.environ, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(url, process))
        yield process, url
    finally:
        process.kill()
        process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        return httpx.get(f"{url}/healthz", timeout=10).is_success
    except httpx.TransportError:
        return False


def wait_for(ready: Callable[[], bool], seconds: float = WAIT_S) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"not ready within {seconds} s"
        time.sleep(0.05)


def rewrite_all(team: Team, approve: Callable[[int], tuple[bool, bool]] = lambda n: (True, False)) -> None:
    """Bring the one item of a project through rewriting, to its end or to the vote."""
    for name in ("Ana", "Bo"):
        team[name].label("ND")
    for name in ("Ana", "Bo"):
        team[name].give("target", {"target": "IC"})
    for name in ("Ana", "Bo"):
        team[name].give("rewrite", {**RECORD, "follow_up": f"{RECORD['follow_up']} Says {name}."})
    for n, name in enumerate(("Cai", "Dee", "Eli")):
        first, second = approve(n)
        team[name].give("review", {"first": {"approve": first}, "second": {"approve": second}})
