"""The files around containers, without an engine: what is locked and limited, and that their commands are ours."""

import importlib.util
import re
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedbayes.cli.command import main

HERE = Path(__file__).parents[1] / "docker"
MANIFESTS = sorted(HERE.glob("kubernetes/*.yaml"))
COMPOSE = yaml.safe_load((HERE / "compose.yml").read_text("utf-8"))["services"]
OBJECTS = [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text("utf-8"))]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in OBJECTS if "template" in one["spec"]
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(file: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", (HERE / file).read_text("utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_the_lock_file_has_hashes_and_fits_what_the_project_asks_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load("requirements")
    wanted = [Requirement(line) for line in capsys.readouterr().out.splitlines()]
    locked = pinned("lock.txt")
    versions = locked | pinned("torch.txt")
    assert len(wanted) > 15
    for one in wanted:
        version = versions.get(canonicalize_name(one.name))
        assert version and one.specifier.contains(version), f"{one} is not what is locked: {version}"
    blocks = re.split(r"\n(?=[a-z])", (HERE / "lock.txt").read_text("utf-8"))[1:]
    assert len(blocks) == len(locked) and all("--hash=sha256:" in block for block in blocks)
    assert not {"torch", "torchvision"} & set(locked), "which build it is, is the builder's choice"


def test_every_manifest_is_valid_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for one in OBJECTS:
        validate.validate(one, validate.latest_version(), strict=True)
    assert {one["kind"] for one in OBJECTS} == {"Service", "StatefulSet", "NetworkPolicy"}
    with pytest.raises(validate.ValidationError):
        validate.validate(OBJECTS[0] | {"sepc": {}}, validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", PODS)
def test_pods_have_limits_and_no_rights_and_are_started_again(name: str) -> None:
    pod = PODS[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}
    assert not rights["allowPrivilegeEscalation"] and "memory" in container["resources"]["limits"]
    assert container["livenessProbe"]["exec"]["command"][-1] in container["args"], (
        "the health server's address"
    )


@pytest.mark.parametrize("name", COMPOSE)
def test_services_have_limits_and_no_rights(name: str) -> None:
    service = COMPOSE[name]
    assert service["mem_limit"] and service["pids_limit"] and service["logging"]["options"]["max-size"]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
    if "profiles" not in service:
        assert service["restart"] == "unless-stopped"
        *_, address, ends = service["healthcheck"]["test"]
        assert address in service["command"] and int(ends) >= service["healthcheck"]["retries"]


COMMANDS = {
    **{f"compose {name}": service["command"] for name, service in COMPOSE.items() if name != "runner"},
    **{f"kubernetes {name}": pod["containers"][0]["args"] for name, pod in PODS.items()},
}


@pytest.mark.parametrize("who", COMMANDS)
def test_the_commands_in_them_are_ours(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, ...]] = []
    for function in ("site.start", "coordinator.start", "keys.make_keys"):
        monkeypatch.setattr(f"fedbayes.deploy.{function}", lambda *words: called.append(words))
    with pytest.raises((SystemExit, AttributeError)) as end:  # `keys` wants to say what was made
        main(COMMANDS[who])
    assert called and getattr(end.value, "code", 0) == 0


@pytest.mark.parametrize("who", COMMANDS)
def test_no_coordinator_is_given_a_database_file(who: str) -> None:
    """With a file, sites that write at once lose replies ("database is locked"), and our own state is not used."""
    assert not [word for word in COMMANDS[who] if "--database" in word]


def test_a_service_that_fails_too_often_is_ended_and_one_that_never_served_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = load("health")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(health, "FAILED", tmp_path / "failed")
    monkeypatch.setattr(health.os, "kill", lambda *words: sent.append(words))
    for _ in range(9):
        assert health.judge("away", 3) == "away" and not sent, "it may still be starting"
    assert health.judge("", 3) == ""
    for _ in range(2):
        health.judge("away", 3)
    health.judge("", 3)
    assert not sent, "it has recovered"
    told = [health.judge("away", 3) for _ in range(6)]
    assert told[2] == "away, 3 times in a row"
    assert sent == [(1, signal.SIGTERM), (-1, signal.SIGKILL)]
    assert health.judge("away", 0) == "away" and len(sent) == 2, "Kubernetes does it by itself"
