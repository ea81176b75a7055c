"""The manifest for Kubernetes has the form that its kinds ask for, and names flags that exist; it is tried nowhere."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
import yaml

from gateway.config import GatewaySettings
from launcher.cli.cluster_command import cluster

DOCUMENTS = list(yaml.safe_load_all((Path(__file__).parents[2] / "deploy/kuberay.yaml").read_text("utf-8")))
KINDS = {"RayCluster": "ray.io/v1", "RayJob": "ray.io/v1", "Service": "v1", "Deployment": "apps/v1"}


def document(kind):
    return next(each for each in DOCUMENTS if each["kind"] == kind)


def pods():
    spec = document("RayCluster")["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [*(group["template"]["spec"] for group in groups), document("Deployment")["spec"]["template"]["spec"]]


def test_each_document_is_of_a_known_kind_and_has_a_name():
    assert {each["kind"]: each["apiVersion"] for each in DOCUMENTS} == KINDS
    assert all(
        set(each) == {"apiVersion", "kind", "metadata", "spec"} and each["metadata"]["name"] for each in DOCUMENTS
    )


def test_every_mount_has_its_volume_and_every_container_an_image():
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["image"] and {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_values_for_processes_are_strings():
    spec = document("RayCluster")["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    values = [value for group in groups for value in group["rayStartParams"].values()]
    values += [pair["value"] for pod in pods() for each in pod["containers"] for pair in each.get("env", ())]
    assert all(isinstance(value, str) for value in values)
    workers = spec["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def test_ray_is_told_what_a_ray_of_ours_is_told():
    session = pytest.importorskip("launcher.cluster.ray_session", reason="Ray is not installed")
    for pod in pods()[:2]:
        told = {pair["name"]: pair["value"] for pair in pod["containers"][0]["env"]}
        assert told == session.ENVIRONMENT
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    assert document("RayCluster")["spec"]["rayVersion"] == ray.__version__


def test_names_and_ports_meet():
    name = document("RayCluster")["metadata"]["name"]
    service = document("Service")
    assert (
        service["spec"]["selector"]["ray.io/cluster"]
        == name
        == document("RayJob")["spec"]["clusterSelector"]["ray.io/cluster"]
    )
    command = document("Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
    port = service["spec"]["ports"][0]["port"]
    assert command[command.index("--directory") + 1] == f"{service['metadata']['name']}:{port}"
    entry = shlex.split(document("RayJob")["spec"]["entrypoint"])
    assert entry[entry.index("--directory-port") + 1] == str(port)


def test_the_commands_have_the_flags_that_they_are_given():
    entry = shlex.split(document("RayJob")["spec"]["entrypoint"])
    assert entry[:3] == ["slipstream", "cluster", "up"]
    known = {option for each in typer.main.get_command(cluster).commands["up"].params for option in each.opts}
    assert {flag for flag in entry if flag.startswith("--")} <= known
    command = document("Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:3] == ["python", "-m", "gateway"]
    fields = {f"--{name.replace('_', '-')}" for name in GatewaySettings.model_fields}
    assert {flag for flag in command if flag.startswith("--")} <= fields
