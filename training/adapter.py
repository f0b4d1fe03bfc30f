"""What can be done with the adapter of a finished run: merge it into its backbone, write its card, put it on a hub."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError

from synuc.folder import write_whole
from synuc.problem import Problem
from training.backbone import load_model, load_tokenizer, merge
from training.card import card, public_name
from training.config import Backbone
from training.folder import TrainFolder

# The base of network errors in the HTTP client that huggingface_hub uses, which has been another one over time.
HTTP_ERROR: Any = HfHubHTTPError.__bases__[0]


class AdapterError(Problem):
    """An adapter that can't be merged or published; the message says what to do."""


def merge_run(run: Path, out: Path | None = None) -> Path:
    """Write a run's adapter merged into its backbone as a plain Hugging Face folder, by default RUN/merged.

    Its weights have the precision that the backbone is loaded in (`backbone.dtype`).

    Raises:
        Problem: with what to do; nothing is left at `out`.
    """
    folder = TrainFolder.finished(run)
    target = (out or folder.merged).expanduser().resolve()
    with folder.locked():
        write_merged(folder.backbone(), folder.adapter, target, card(folder, merged=True))
    return target


def write_merged(backbone: Backbone, adapter: Path, target: Path, text: str | None = None) -> None:
    """Write the backbone with an adapter merged in, its tokenizer and a card, whole or not at all.

    Raises:
        Problem: something is at `target`, it can't be written, or the adapter doesn't fit the backbone.
    """
    if target.exists():
        raise AdapterError(f"{target} is there already; remove it or choose another --out")
    hidden = target.with_name(f".{target.name}")
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
        # By default transformers writes the names that it read, and those may be a wrapper's.
        merge(load_model(backbone), adapter).save_pretrained(hidden, save_original_format=False)
        load_tokenizer(backbone).save_pretrained(hidden)
        if text is not None:
            (hidden / "README.md").write_text(text, "utf-8")
        hidden.rename(target)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"can't write {target}: {error}; make room or choose another place") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def write_card(run: Path) -> str:
    """Write the adapter's model card anew; gives its text. Raises RunError."""
    folder = TrainFolder.finished(run)
    text = card(folder)
    with folder.locked():
        write_whole(folder.adapter / "README.md", text)
    return text


def push(run: Path, repo: str, public: bool = False) -> str:
    """Upload a run's adapter to a repository of the Hugging Face hub, which is made if need be; gives its address.

    The token is that of HF_TOKEN or of a login. Names of folders on this machine are not sent.

    Raises:
        Problem: with what to do.
    """
    folder = TrainFolder.finished(run)
    if get_token() is None:
        raise AdapterError("no Hugging Face token: set HF_TOKEN, or log in with: hf auth login")
    api = HfApi()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "adapter"
        shutil.copytree(folder.adapter, copy)
        name_base(copy, public_name(folder.backbone().model))
        message = f"Adapter of the run with fingerprint {folder.method['fingerprint']}"
        try:
            made = api.create_repo(repo, private=not public, exist_ok=True)
            if not public and not api.repo_info(made.repo_id).private:
                raise AdapterError(f"{made.repo_id} is there already, and public; say that you mean it with --public")
            api.upload_folder(repo_id=made.repo_id, folder_path=copy, commit_message=message)
        except HFValidationError as error:
            raise AdapterError(f"{repo} is no name of a repository: {error}") from None
        except HfHubHTTPError as error:
            said = f"{error.response.status_code} {error.server_message or ''}".strip()
            raise AdapterError(f"the hub refused {repo} ({said}); look at the name and at the token's rights") from None
        except (OSError, HTTP_ERROR) as error:
            raise AdapterError(
                f"{api.endpoint} can't be reached ({error}); the adapter is in {folder.adapter}"
            ) from None
    return str(made)


def name_base(adapter: Path, base: str) -> None:
    """Change what an adapter calls its base."""
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text("utf-8"))
    write_whole(path, json.dumps({**config, "base_model_name_or_path": base}, indent=2))
