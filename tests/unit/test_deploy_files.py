"""The files of docs/deploy agree with the project, and ask for no more than they need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.deploy_files import (
    COMPOSE,
    DOCKERFILE,
    KUBERNETES,
    compose,
    context_files,
    instructions,
    kubernetes,
)
from tests.support.distributions import PACKAGES, ROOT

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = re.compile(
    r"password|secret|(?<!automountServiceAccount)token|credential|PRIVATE KEY", re.IGNORECASE
)


def images() -> list[str]:
    """List the images that the Dockerfile begins from."""
    return [each.text.split()[0] for each in instructions() if each.word == "FROM"]


def pods() -> Iterator[dict[str, Any]]:
    for resource in kubernetes():
        spec = resource["spec"]
        spec = spec.get("jobTemplate", resource)["spec"]
        if "template" in spec:
            yield spec["template"]["spec"]


def test_each_image_has_an_exact_version() -> None:
    assert all(re.search(r":\d+\.\d+\.\d+[\w-]*$", image) for image in images())
    pythons = {image for image in images() if image.startswith("python:")}
    assert len(pythons) == 1, "the environment is made by the Python that runs it"
    (version,) = re.findall(r"python:(3\.\d+)\.", pythons.pop())
    (home,) = re.findall(r"SPARK_HOME=(\S+)", DOCKERFILE.read_text())
    assert home == f"/opt/kafkalog/lib/python{version}/site-packages/pyspark"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f">={version}" == project["requires-python"]


def test_pip_takes_the_locked_versions_alone() -> None:
    commands = [
        re.sub(r"\s+", " ", command)
        for each in instructions()
        if each.word == "RUN"
        for command in each.text.split("&&")
    ]
    installs = [command for command in commands if " install " in command and "pip" in command]
    assert len(installs) == 3
    assert all("--constraint requirements/lock.txt" in command for command in installs)
    assert not re.search(r"==", " ".join(installs)), "versions stand in requirements/lock.txt"
    locked = (ROOT / "requirements/lock.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pinned in project["build-system"]["requires"]:
        assert f"{pinned}\n" in locked
    for extra in project["project"]["optional-dependencies"]["spark"]:
        assert f"\n{re.match(r'[a-z]+', extra)[0]}==" in locked


@pytest.mark.parametrize("path", [DOCKERFILE, COMPOSE, KUBERNETES], ids=lambda path: path.name)
def test_a_file_names_this_version_and_holds_no_secret(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"kafkalog:([\w.]+)", text)) == {kafkalog.__version__}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in lines if SECRET.search(line)] == []


def test_the_image_is_built_from_what_makes_the_wheel_and_nothing_else() -> None:
    found = set(context_files())
    tops = {path.parts[0] for path in found}
    assert tops == {"LICENSE", "README.md", "pyproject.toml", "requirements", "src", *PACKAGES}
    assert {path for path in found if path.parts[0] == "requirements"} == {
        Path("requirements/lock.txt")
    }
    for name in PACKAGES:
        assert Path("src/kafkalog") / name in found, "the link to the folder"


def test_nothing_runs_as_root() -> None:
    *_, user = [each.text for each in instructions() if each.word == "USER"]
    last = max(each.stage for each in instructions())
    assert [each.stage for each in instructions() if each.word == "USER"] == [last]
    assert user == "1000:1000"
    for service in compose()["services"].values():
        assert "user" not in service
        assert "privileged" not in service
        assert service["cap_drop"] == ["ALL"]
    for pod in pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["fsGroup"] == context["runAsGroup"]
        for container in pod["containers"]:
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["securityContext"]["readOnlyRootFilesystem"]


def test_all_services_see_the_logs_under_the_same_path() -> None:
    file = compose()
    assert file["services"]["worker"]["deploy"]["replicas"] == 2
    assert {tuple(each["volumes"]) for each in file["services"].values()} == {("logs:/logs",)}
    assert "logs" in file["volumes"]


def test_pods_have_limits_and_mount_what_they_name() -> None:
    found = list(pods())
    assert len(found) == 2
    for pod in found:
        for container in pod["containers"]:
            resources = container["resources"]
            assert resources["requests"].keys() == resources["limits"].keys() == {"cpu", "memory"}
            mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            assert mounted.keys() == {each["name"] for each in pod["volumes"]}
            # the root is read-only: what is written to is mounted
            assert set(mounted.values()) == {"/logs", "/tmp", "/home/kafkalog"}


def test_a_pod_is_given_longer_than_the_query_takes_to_end() -> None:
    (pod,) = (each for each in pods() if "terminationGracePeriodSeconds" in each)
    words = pod["containers"][0]["args"]
    grace = int(words[words.index("--grace") + 1].removesuffix("s"))
    assert pod["terminationGracePeriodSeconds"] > grace


def test_no_pod_of_a_query_starts_beside_an_earlier_one() -> None:
    kinds = {each["kind"]: each["spec"] for each in kubernetes()}
    assert kinds.keys() == {"PersistentVolumeClaim", "StatefulSet", "CronJob"}
    assert kinds["StatefulSet"]["replicas"] == 1
    assert kinds["CronJob"]["concurrencyPolicy"] == "Forbid"
