"""What `ray up` and KubeRay are given: Ray accepts it, it is safe, it fits, and its commands are real."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from cluster.placement import place
from synuc.cli import app
from synuc.config import RunConfig
from synuc.layers import Section, compose
from tests.unit.test_cluster_images import IMAGES, IN_IMAGE, arguments
from training.config import GrpoConfig, SftConfig

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
KUBERAY = CLUSTER / "kuberay"
MANIFESTS = ["rayjob-synthesis", "rayjob-training", "rayservice"]
CONFIG_OF: dict[str, type[Section]] = {"synthesize": RunConfig, "train sft": SftConfig, "train grpo": GrpoConfig}


def manifest(name: str) -> Any:
    return yaml.safe_load((KUBERAY / f"{name}.yaml").read_text("utf-8"))


def cluster_of(name: str) -> Any:
    spec = manifest(name)["spec"]
    return spec["rayClusterConfig" if name == "rayservice" else "rayClusterSpec"]


def pods(name: str) -> Iterator[Any]:
    """The specs of the manifest's pods: head, workers, and of a job the one that submits it."""
    cluster = cluster_of(name)
    yield cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]["spec"]
    if name != "rayservice":
        yield manifest(name)["spec"]["submitterPodTemplate"]["spec"]


def resources(group: Any) -> dict[str, float]:
    """What all pods of a worker group have together, as Ray counts it."""
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    return {
        "CPU": group["replicas"] * float(limits["cpu"]),
        "GPU": group["replicas"] * float(limits.get("nvidia.com/gpu", 0)),
    }


def entrypoint(text: str) -> list[list[str]]:
    """The commands of a job's entrypoint."""
    words = shlex.split(text)
    if words[:2] == ["sh", "-c"]:
        return [shlex.split(command) for command in words[2].split("&&")]
    return [words]


def commented(text: str) -> list[list[str]]:
    """The `synuc` commands in a file's comments, alone or behind `ray job submit ... --`."""
    joined = re.sub(r"\\\n#\s+", "", text)
    lines = [shlex.split(line[1:], comments=True) for line in joined.splitlines() if line.startswith("#   ")]
    lines = [line[line.index("--") + 1 :] if line[:3] == ["ray", "job", "submit"] else line for line in lines]
    return [line for line in lines if line[:1] == ["synuc"]]


def commands() -> list[list[str]]:
    """Every `synuc` command that is given to a cluster."""
    given = [command for name in MANIFESTS[:2] for command in entrypoint(manifest(name)["spec"]["entrypoint"])]
    for file in (*KUBERAY.glob("*.yaml"), CLUSTER / "ray-cluster.yaml"):
        given += commented(file.read_text("utf-8"))
    return given


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's full name and its parameters, as the real `synuc` reads them. Raises TyperException."""
    assert words[0] == "synuc"
    command, context, names, rest = get_command(app), None, ["synuc"], words[1:]
    while isinstance(command, TyperGroup):
        context = command.make_context(names[-1], list(rest), parent=context)
        name, found, rest = command.resolve_command(context, list(rest))
        assert name
        assert found
        names.append(name)
        command = found
    return " ".join(names[1:]), command.make_context(names[-1], list(rest), parent=context).params


def config_of(words: list[str]) -> Any:
    """The configuration that a command runs with, from the files that it names."""
    name, params = parsed(words)
    files = [*params["configs"], *([params["backbone"]] if params.get("backbone") else [])]
    here = [ROOT / str(file).removeprefix(f"{IN_IMAGE}/") for file in files]
    return compose(CONFIG_OF[name], here, params["overrides"])


def locked(package: str) -> str:
    (version,) = re.findall(
        rf"^{package}==(.+)$", (ROOT / "requirements" / "cpu.lock").read_text("utf-8"), re.MULTILINE
    )
    return str(version)


# Commands


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_one_that_synuc_takes_and_its_configs_load(words: list[str]) -> None:
    name, params = parsed(words)
    if name in CONFIG_OF:
        assert params["configs"]
        assert config_of(words)
    for key in ("run", "data", "start"):
        if params.get(key):
            assert str(params[key]).startswith("/shared/"), f"{key} must be on the volume that all nodes share"
    for path in params.get("seeds", []):
        assert path.startswith("/shared/")


def test_the_commands_are_found() -> None:
    assert {parsed(words)[0] for words in commands()} == {"synthesize", "export", "train sft", "train grpo"}
    assert ["synuc", "synthesize", "--config", "configs/gpu.yaml"] in [words[:4] for words in commands()]


def test_a_command_that_is_not_there_would_be_noticed() -> None:
    with pytest.raises(TyperException, match="No such option"):
        parsed(["synuc", "synthesize", "--run", "/shared/runs/first", "--conf", "configs/gpu.yaml"])
    with pytest.raises(TyperException, match="No such command"):
        parsed(["synuc", "train", "dpo"])


def test_synthesis_exports_the_run_that_it_made() -> None:
    first, second = entrypoint(manifest("rayjob-synthesis")["spec"]["entrypoint"])
    assert parsed(first)[1]["run"] == parsed(second)[1]["run"]


def test_training_learns_from_that_export() -> None:
    (_, export) = entrypoint(manifest("rayjob-synthesis")["spec"]["entrypoint"])
    (train,) = entrypoint(manifest("rayjob-training")["spec"]["entrypoint"])
    assert Path(parsed(train)[1]["data"]) == Path(parsed(export)[1]["run"]) / "export"


# What fits


def test_synthesis_is_as_wide_as_its_endpoint() -> None:
    (workers,) = cluster_of("rayjob-synthesis")["workerGroupSpecs"]
    (synthesize, _) = entrypoint(manifest("rayjob-synthesis")["spec"]["entrypoint"])
    config = config_of(synthesize)
    placed = place(config.engines(), config.cluster, [resources(workers)])
    assert placed == place(config.engines(), config.cluster, [{"CPU": 1000.0}])


def test_training_has_a_gpu_for_every_worker() -> None:
    (workers,) = cluster_of("rayjob-training")["workerGroupSpecs"]
    (train,) = entrypoint(manifest("rayjob-training")["spec"]["entrypoint"])
    assert config_of(train).cluster.workers == resources(workers)["GPU"]


def test_the_cluster_of_ray_up_has_an_engine_on_every_gpu() -> None:
    config = ray_cluster()
    node = config["available_node_types"]["gpu"]
    there = [node["resources"]] * node["min_workers"]
    run = config_of(next(words for words in commands() if "configs/gpu.yaml" in words))
    placed = place(run.engines(), run.cluster, there)
    assert placed.workers * placed.gpus == sum(one["GPU"] for one in there)
    assert placed.workers * placed.cpus < sum(one["CPU"] for one in there)


# KubeRay


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_what_kuberay_asks_for(name: str) -> None:
    whole = manifest(name)
    assert whole["apiVersion"] == "ray.io/v1"
    assert whole["kind"] == {"rayservice": "RayService"}.get(name, "RayJob")
    assert re.fullmatch("[a-z][a-z0-9-]{1,40}", whole["metadata"]["name"])
    cluster = cluster_of(name)
    assert cluster["rayVersion"] == locked("ray")
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["template"]["spec"]["containers"][0]["name"] == "ray-head"
    groups = cluster["workerGroupSpecs"]
    assert len({group["groupName"] for group in groups}) == len(groups) > 0
    for group in groups:
        assert re.fullmatch("[a-z][a-z0-9-]*", group["groupName"])
        assert 0 < group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert isinstance(group["rayStartParams"], dict)
    for pod in pods(name):
        for container in pod["containers"]:
            needs = container["resources"]
            assert {"cpu", "memory"} <= needs["requests"].keys() & needs["limits"].keys()
            assert needs["requests"].get("nvidia.com/gpu") == needs["limits"].get("nvidia.com/gpu")
            tag = container["image"].rpartition(":")[2]
            assert (CLUSTER / f"Dockerfile.{tag}").exists()
            assert tag == "gpu" or "nvidia.com/gpu" not in needs["limits"]
    assert len({container["image"] for pod in pods(name) for container in pod["containers"]}) == 1


@pytest.mark.parametrize("name", MANIFESTS[:2])
def test_a_job_is_as_wide_as_it_starts_and_goes_on_after_its_cluster(name: str) -> None:
    spec = manifest(name)["spec"]
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"]
    assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"
    # With resources of its own, Ray would start the driver on any node, and not beside the head.
    assert not any(key.startswith("entrypointNum") or key == "entrypointResources" for key in spec)
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] == group["maxReplicas"]
    assert not spec["rayClusterSpec"].get("enableInTreeAutoscaling")


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_have_no_privileges_and_leave_the_probes_to_kuberay(name: str) -> None:
    for pod in pods(name):
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        users = {arguments(kind, "USER")[-1] for kind in IMAGES}
        assert users == {f"{context['runAsUser']}:{context['runAsGroup']}"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            # One of ours would take the place of KubeRay's, which knows Ray's version and Serve's proxy.
            assert not {"livenessProbe", "readinessProbe"} & container.keys()


@pytest.mark.parametrize("name", MANIFESTS)
def test_secrets_come_from_a_secret_and_every_node_has_them(name: str) -> None:
    seen = []
    for pod in list(pods(name))[: 1 + len(cluster_of(name)["workerGroupSpecs"])]:
        (container,) = pod["containers"]
        for variable in container["env"]:
            if re.search("KEY|TOKEN|SECRET|PASSWORD", variable["name"]):
                assert variable.keys() == {"name", "valueFrom"}
                reference = variable["valueFrom"]["secretKeyRef"]
                assert (reference["name"], reference["key"]) == ("synuc", variable["name"])
        seen.append(container["env"])
    assert all(variables == seen[0] for variables in seen)
    names = {variable["name"] for variable in seen[0]}
    expected = {"rayjob-synthesis": "OPENAI_API_KEY", "rayjob-training": "HF_TOKEN", "rayservice": "SYNUC_API_KEYS"}
    assert expected[name] in names


def test_the_keys_are_those_that_the_configs_name() -> None:
    (synthesize, _) = entrypoint(manifest("rayjob-synthesis")["spec"]["entrypoint"])
    assert config_of(synthesize).engine.api_key_env == "OPENAI_API_KEY"
    serve = yaml.safe_load(manifest("rayservice")["spec"]["serveConfigV2"])
    assert serve["applications"][0]["args"]["api_keys_env"] == "SYNUC_API_KEYS"


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_node_has_the_shared_volume(name: str) -> None:
    claim = manifest("volume")
    assert (claim["kind"], claim["spec"]["accessModes"]) == ("PersistentVolumeClaim", ["ReadWriteMany"])
    for pod in list(pods(name))[: 1 + len(cluster_of(name)["workerGroupSpecs"])]:
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        mounts = pod["containers"][0]["volumeMounts"]
        assert {"name": volume["name"], "mountPath": "/shared"} in mounts
        assert {mount["name"] for mount in mounts} == {volume["name"]}


def test_deleting_a_job_does_not_delete_the_volume() -> None:
    for name in MANIFESTS:
        documents = list(yaml.safe_load_all((KUBERAY / f"{name}.yaml").read_text("utf-8")))
        assert len(documents) == 1


def test_the_service_is_that_of_serve_deploy() -> None:
    text = manifest("rayservice")["spec"]["serveConfigV2"]
    assert text == (CLUSTER / "serve.yaml").read_text("utf-8")
    deploy = ServeDeploySchema.model_validate(yaml.safe_load(text))
    for pod in pods("rayservice"):
        assert {"name": "serve", "containerPort": deploy.http_options.port} in pod["containers"][0]["ports"]
    adapters = deploy.applications[0].args["detector"]["adapters"].values()
    mounts = {mount["mountPath"]: mount for mount in next(pods("rayservice"))["containers"][0]["volumeMounts"]}
    assert all(Path(folder).parent.as_posix() in mounts for folder in adapters)


def test_there_are_pods_for_all_detectors() -> None:
    service = manifest("rayservice")["spec"]
    (application,) = yaml.safe_load(service["serveConfigV2"])["applications"]
    replicas = application["args"]["detector"]["replicas"]
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (replicas["least"], replicas["most"])
    (detector,) = application["deployments"]
    assert detector["ray_actor_options"]["num_gpus"] == resources(group)["GPU"] / group["replicas"]
    assert service["rayClusterConfig"]["enableInTreeAutoscaling"]


# `ray up`


def ray_cluster() -> Any:
    return yaml.safe_load((CLUSTER / "ray-cluster.yaml").read_text("utf-8"))


def test_ray_accepts_the_cluster() -> None:
    prepared = prepare_config(ray_cluster())
    validate_config(prepared)
    assert prepared["available_node_types"]["head"]["max_workers"] == 0


def test_ray_would_notice_a_key_that_is_none() -> None:
    spoilt = copy.deepcopy(ray_cluster())
    spoilt["available_node_types"]["gpu"]["min_worker"] = 1
    with pytest.raises(jsonschema.ValidationError, match="min_worker"):
        validate_config(prepare_config(spoilt))


def test_the_head_of_ray_up_is_kept_free_and_to_itself() -> None:
    config = ray_cluster()
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}
    start = config["head_start_ray_commands"][-1].split()
    assert {"--head", "--num-cpus=0", "--dashboard-host=127.0.0.1"} <= set(start)
    gpu = config["available_node_types"]["gpu"]
    assert gpu["min_workers"] == gpu["max_workers"] == config["max_workers"]


def test_ray_up_mounts_the_shared_storage_into_every_container() -> None:
    config = ray_cluster()
    assert any(" /shared)" in command and "nfs4" in command for command in config["initialization_commands"])
    assert "--volume=/shared:/shared" in config["docker"]["run_options"]
    assert not {"head_run_options", "worker_run_options"} & config["docker"].keys()
    assert config["docker"]["image"].rpartition(":")[2] in IMAGES
