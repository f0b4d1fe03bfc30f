"""The card of an adapter, and its way to a hub, which is a server of this test's own."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi
from typer.testing import CliRunner

from synuc.cli import app
from tests.tiny import FAMILIES, export_folder, save_family, sft_run
from training.adapter import AdapterError, merge_run, push
from training.config import Backbone
from training.folder import TrainFolder

pytestmark = pytest.mark.usefixtures("one_thread")

TOKEN = "hf_0123456789"


@dataclass
class Hub:
    """What was sent to the fake hub, and how it answers."""

    url: str = ""
    there_and_public: bool = False
    created: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Any]:
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials in Authorization header"}
        if path == "/api/repos/create":
            self.created = json.loads(body)
            name = f"{self.created.get('organization') or 'me'}/{self.created['name']}"
            url = {"url": f"{self.url}/{name}", "name": name}
            return (
                (409, {**url, "error": "You already created this model repo"}) if self.there_and_public else (200, url)
            )
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return 200, {"commitUrl": f"{self.url}/me/detector/commit/1", "commitOid": "1" * 40, "hookOutput": ""}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if method == "GET" and path.startswith("/api/models/"):
            return 200, {"id": "me/detector", "private": not self.there_and_public, "sha": "1" * 40, "siblings": []}
        return 404, {"error": f"{method} {path}"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "")
            status, answer = hub.answer(self.command, self.path.partition("?")[0], token, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("training.adapter.HfApi", partial(HfApi, endpoint=hub.url))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainFolder:
    root = tmp_path_factory.mktemp("adapter")
    backbone = save_family(FAMILIES["llama-3.1"], root / "private" / "tiny-llama")
    return sft_run(backbone, export_folder(root / "export"), root / "detector", steps=2)


def front_matter(card: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return data


def test_a_card_says_what_it_was_made_from(run: TrainFolder) -> None:
    readme = run.adapter / "README.md"
    written = readme.read_text("utf-8")
    readme.unlink()
    printed = CliRunner().invoke(app, ["adapter", "card", str(run.path)])
    assert printed.exit_code == 0
    assert printed.stdout == readme.read_text("utf-8") + "\n"
    assert readme.read_text("utf-8") == written
    assert front_matter(written)["base_model"] == "tiny-llama"
    assert str(run.path.parent) not in written
    assert "| examples | 8 |" in written
    assert f"| method | fingerprint {run.method['fingerprint']} |" in written
    assert f"| loss | {sum(row['loss'] for row in run.rows()) / 2:.4f} |" in written


def test_merging_says_where_and_leaves_nothing_half_done(run: TrainFolder, tmp_path: Path) -> None:
    command = ["adapter", "merge", str(run.path), "--out", str(tmp_path / "models" / "detector")]
    done = CliRunner().invoke(app, command)
    assert done.stdout == f"{tmp_path}/models/detector is ready.\n"
    merged = (tmp_path / "models" / "detector" / "README.md").read_text("utf-8")
    assert front_matter(merged)["library_name"] == "transformers"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["detector"]
    with pytest.raises(AdapterError, match="is there already; remove it or choose another --out"):
        merge_run(run.path, tmp_path / "models" / "detector")
    (tmp_path / "file").touch()
    with pytest.raises(AdapterError, match="can't write"):
        merge_run(run.path, tmp_path / "file" / "detector")


def test_a_push_sends_the_adapter_and_no_names_of_folders(run: TrainFolder, hub: Hub) -> None:
    done = CliRunner().invoke(app, ["adapter", "push", str(run.path), "me/detector"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{hub.url}/me/detector has the adapter.\n"
    assert hub.created["visibility"] == "private"
    assert set(hub.files) == {path.name for path in run.adapter.iterdir()}
    weights = "adapter_model.safetensors"
    assert hub.files[weights] == (run.adapter / weights).read_bytes()
    assert json.loads(hub.files["adapter_config.json"])["base_model_name_or_path"] == "tiny-llama"
    assert not any(str(run.path.parent).encode() in data for data in hub.files.values())


def test_a_public_repository_must_be_meant(run: TrainFolder, hub: Hub) -> None:
    hub.there_and_public = True
    with pytest.raises(AdapterError, match="and public; say that you mean it with --public"):
        push(run.path, "me/detector")
    assert not hub.files
    push(run.path, "me/detector", public=True)
    assert hub.created["visibility"] == "public"
    assert hub.files


def test_what_a_hub_does_not_take_is_one_message(run: TrainFolder, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdapterError, match="no name of a repository"):
        push(run.path, "a/b/c")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AdapterError, match=r"refused me/detector \(401 Invalid credentials") as refused:
        push(run.path, "me/detector")
    assert "\n" not in str(refused.value)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("training.adapter.get_token", lambda: None)
    with pytest.raises(AdapterError, match="set HF_TOKEN, or log in"):
        push(run.path, "me/detector")


def test_a_hub_out_of_reach_is_one_message(run: TrainFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("training.adapter.HfApi", partial(HfApi, endpoint="http://127.0.0.1:9"))
    with pytest.raises(AdapterError, match=r"http://127\.0\.0\.1:9 can't be reached"):
        push(run.path, "me/detector")


def test_the_embedded_model_has_its_public_name(tmp_path: Path) -> None:
    run = sft_run(Backbone(model="embedded"), export_folder(tmp_path / "export"), tmp_path / "run", steps=1)
    config = json.loads((run.adapter / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    card = (run.adapter / "README.md").read_text("utf-8")
    assert front_matter(card)["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "quantised to 4 bits" in card
