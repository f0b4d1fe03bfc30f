"""The Dockerfiles: they copy what there is, install what is named elsewhere, and are what the manifests count on."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
IN_IMAGE = "/opt/synuc"
IMAGES = ["cpu", "gpu"]


def dockerfile(kind: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (CLUSTER / f"Dockerfile.{kind}").read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def arguments(kind: str, instruction: str) -> list[str]:
    return [rest for name, rest in dockerfile(kind) if name == instruction]


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_copies_only_what_there_is(kind: str) -> None:
    allowed = [line[1:].rstrip("/") for line in ignored() if line.startswith("!")]
    copies = [[word for word in rest.split() if not word.startswith("--")][:-1] for rest in arguments(kind, "COPY")]
    for source in chain.from_iterable(copies):
        assert (ROOT / source).exists(), source
        assert source == "." or source.split("/")[0] in allowed, source
    assert copies[-1] == ["."]


def ignored() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_an_image_gets_all_packages_and_nothing_else_by_accident() -> None:
    lines = ignored()
    assert lines[0] == "*"
    packages = {name.split(".")[0] for name in project()["tool"]["setuptools"]["packages"]}
    needed = {*packages, "configs", "requirements", "pyproject.toml", "README.md"}
    assert needed <= {line[1:].rstrip("/") for line in lines}
    assert not {line[1:].rstrip("/") for line in lines} & {".git", ".venv", "runs", "tests"}


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_what_the_manifests_count_on(kind: str) -> None:
    assert arguments(kind, "WORKDIR") == [IN_IMAGE]
    assert arguments(kind, "USER") == ["1000:1000"]
    environment = dict(word.partition("=")[::2] for rest in arguments(kind, "ENV") for word in rest.split())
    # `ray up` looks for HOME in the image, and takes /root where there is none.
    assert environment["HOME"] == "/home/ray"
    assert environment["PATH"].startswith(f"{environment['VIRTUAL_ENV']}/bin:")
    runs = "\n".join(arguments(kind, "RUN"))
    assert f"export PATH={environment['VIRTUAL_ENV']}/bin:$PATH' > /etc/profile.d/" in runs
    (installed,) = re.findall(r"apt-get install -y --no-install-recommends ([^&]+)&&", runs)
    assert {"wget", "rsync", "openssh-client", "libnuma1", "g++"} <= set(installed.split())
    assert dockerfile(kind)[-2][1].endswith(" -e .")


def test_the_cpu_image_is_exactly_the_lock() -> None:
    installs = re.findall(r"\bpip install ([^&]+)", " ".join(arguments("cpu", "RUN")))
    assert all("cpu.lock" in install or "-e ." in install for install in installs)
    assert any("--no-deps -r requirements/cpu.lock" in install for install in installs)
    assert arguments("cpu", "FROM")[0].startswith("python:3.11-")


def test_the_gpu_image_installs_extras_that_there_are() -> None:
    (install,) = [rest for rest in arguments("gpu", "RUN") if "-r pyproject.toml" in rest]
    extras = set(re.findall(r"--extra (\S+)", install))
    assert extras <= project()["project"]["optional-dependencies"].keys()
    # All jobs, without the quick start's model and dialogues and what is only for development.
    assert extras == {"gpu", "train", "eval", "dense", "hub", "review"}
    assert "--python 3.11" in install


@pytest.mark.parametrize("kind", IMAGES)
def test_the_images_are_built_as_the_comments_say(kind: str) -> None:
    said = [
        file.read_text("utf-8") for file in (*(CLUSTER / "kuberay").glob("ray*.yaml"), CLUSTER / "ray-cluster.yaml")
    ]
    builds = [build for text in said for build in re.findall(r"docker build (.+) \.$", text, re.MULTILINE)]
    assert f"-f cluster/Dockerfile.{kind} -t registry.example.com/synuc:{kind}" in builds
