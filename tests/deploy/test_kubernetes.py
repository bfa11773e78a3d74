"""The manifests of deploy/kubernetes: as the schemas of Kubernetes have them, and as the server needs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from basalt.server.listening import ListenAddress, link_address, listen_address
from basalt.settings import load_settings
from deploy.hbase.runtime import ROOT

SECRET_FILE = "BASALT__CLUSTER__SECRET_FILE"
FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
VERSIONS = ("1.29", "1.37")  # the oldest that they are for, and the newest whose schemas are locked
DRAIN_S = 10  # of docs/operations/running.md


def documents(path: Path) -> dict[str, Any]:
    """Resources of a file, by kind."""
    loaded = list(yaml.safe_load_all(path.read_text()))
    assert len({each["kind"] for each in loaded}) == len(loaded)
    return {each["kind"]: each for each in loaded}


def workload(path: Path) -> Any:
    found = documents(path)
    return found.get("StatefulSet") or found["Deployment"]


def container(path: Path) -> Any:
    [only] = workload(path)["spec"]["template"]["spec"]["containers"]
    return only


by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_one_file_for_each_store():
    assert [path.stem for path in FILES] == ["embedded", "hbase"]


@by_file
@pytest.mark.parametrize("version", VERSIONS)
def test_each_resource_is_one_of_kubernetes(path: Path, version: str):
    if not os.environ.get("CI"):
        pytest.importorskip("kubernetes_validate")
    import kubernetes_validate

    for resource in documents(path).values():
        kubernetes_validate.validate(resource, version, strict=True)


@by_file
def test_the_probes_ask_for_what_they_mean(path: Path):
    pod = container(path)
    asked = {kind: pod[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    # Of two servers one is never ready in the sense of /readyz, and an update would wait for it for ever.
    assert asked == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz" if path.stem == "embedded" else "/livez",
    }
    assert {pod[f"{kind}Probe"]["httpGet"]["port"] for kind in asked} == {"http"}
    links = [] if path.stem == "embedded" else [{"name": "links", "containerPort": 4790}]
    assert pod["ports"] == [{"name": "http", "containerPort": 4780}, *links]


@by_file
def test_all_selectors_find_the_pods(path: Path):
    found, spec = documents(path), workload(path)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] == 1


@by_file
def test_a_pod_is_shut_in_and_has_the_time_to_stop(path: Path):
    pod = workload(path)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_S
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) in (ROOT / "deploy" / "Dockerfile").read_text()
    shut_in = container(path)["securityContext"]
    assert shut_in["readOnlyRootFilesystem"] is True
    assert shut_in["capabilities"]["drop"] == ["ALL"]
    mounted = {mount["name"] for mount in container(path)["volumeMounts"]}
    given = {volume["name"] for volume in pod["volumes"]}
    claimed = {claim["metadata"]["name"] for claim in workload(path)["spec"].get("volumeClaimTemplates", ())}
    assert mounted == given | claimed


def environment(path: Path) -> dict[str, str]:
    """The settings in the container's environment, as they are in a pod of the namespace shop."""
    values = {"status.podIP": "10.0.0.7", "metadata.namespace": "shop"}
    pod: dict[str, str] = {}
    given: dict[str, str] = {}
    for each in container(path).get("env", ()):
        if "valueFrom" in each:
            pod[each["name"]] = values[each["valueFrom"]["fieldRef"]["fieldPath"]]
            continue
        given[each["name"]] = each["value"]
        for name, value in pod.items():  # only what stands before it is known
            given[each["name"]] = given[each["name"]].replace(f"$({name})", value)
    named = given.pop(SECRET_FILE, None)  # no such file is here
    assert (named is None) == (path.stem == "embedded")
    if named is not None:
        [mount] = [each for each in container(path)["volumeMounts"] if named.startswith(each["mountPath"] + "/")]
        assert mount["name"] == "links"
    return given


@by_file
def test_the_server_takes_what_it_is_given(path: Path, tmp_path: Path):
    command, *options = container(path)["args"]
    assert command == "serve"
    given = environment(path)
    if path.stem == "hbase":
        secret = tmp_path / "secret"
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o440)
        given[SECRET_FILE] = str(secret)
    flags = [
        f"server.{name.removeprefix('--')}={value}" for name, value in zip(options[::2], options[1::2], strict=True)
    ]
    loaded = load_settings(flags, given, None)
    assert not listen_address(loaded).is_loopback  # and it starts, for somebody wrote that it is to be open
    assert loaded.store.kind == ("rocks" if path.stem == "embedded" else "hbase")
    assert loaded.leader.url == (None if path.stem == "embedded" else "http://10.0.0.7:4780")
    if loaded.store.kind == "hbase":
        assert link_address(loaded) == (ListenAddress("10.0.0.7", "10.0.0.7"), 4_790)


@by_file
def test_the_server_answers_by_every_name_of_its_service(path: Path):
    service = documents(path)["Service"]["metadata"]["name"]
    hosts = load_settings((), environment(path), None).http.hosts
    assert hosts == tuple(service + rest for rest in ("", ".shop", ".shop.svc", ".shop.svc.cluster.local"))


def test_a_store_of_its_own_has_one_process_and_two_servers_of_hbase_are_updated_in_turn():
    embedded, hbase = (workload(FOLDER / f"{name}.yaml")["spec"] for name in ("embedded", "hbase"))
    assert embedded["replicas"] == 1
    assert embedded["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert hbase["replicas"] == 2
    assert hbase["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert hbase["minReadySeconds"] > 8  # a lease and a start: docs/operations/several-servers.md
