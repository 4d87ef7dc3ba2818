"""The commands of the Dockerfile and of the compose file, run here: no container is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import deployed_job
from tests.support.deploy_files import compose, copy_context, instructions, kubernetes
from tests.support.jvm import Server
from tests.support.killed_query import processes_of
from tests.support.spark_cluster import kill

import kafkalog
from kafkalog.jobs.process.jars import java

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark

PORT = "17077"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run what builds the image; the folder stands for its root."""
    root = tmp_path_factory.mktemp("image")
    (root / "src").mkdir()
    copy_context(root / "src")
    commands = [each.text for each in instructions() if (each.stage, each.word) == (0, "RUN")]
    assert len(commands) == 3
    here = Path(sys.executable).parent
    for command in commands:
        text = command.replace("/opt/", f"{root}/opt/").replace("/dist", f"{root}/dist")
        ran = subprocess.run(
            ["bash", "-c", text],
            cwd=root / "src",
            env={**os.environ, "PATH": f"{here}:{os.environ['PATH']}", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return root


@pytest.fixture
def variables(home: Path) -> dict[str, str]:
    """Give the environment that the image sets, under the folder that stands for its root."""
    (text,) = [each.text for each in instructions() if (each.stage, each.word) == (2, "ENV")]
    given = dict(word.split("=", 1) for word in text.split())
    version = f"python3.{sys.version_info.minor}"
    found = {
        name: value.replace("/opt/", f"{home}/opt/").replace("python3.11", version)
        for name, value in given.items()
    }
    found["JAVA_HOME"] = str(Path(java()).parents[1])
    found["PATH"] += f":{Path(java()).parent}"
    return {**found, "HOME": os.environ["HOME"], "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def cluster(variables: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Start what the services start; gives the master's address."""
    services = compose()["services"]
    servers: list[Server] = []
    address = f"spark://127.0.0.1:{PORT}"

    def start(name: str, service: str, ready: str) -> None:
        command = services[service]["command"]
        command = command.replace("spark://master:7077", address).replace(
            "--host master", "--host 127.0.0.1"
        )
        command = command.replace("--port 7077", f"--port {PORT}").replace("8080", "0")
        words = command.replace("/tmp/spark", str(tmp_path / name)).split()
        words[0] = f"{variables['SPARK_HOME']}/bin/{words[0]}"
        if service == "worker":
            words += ["--webui-port", "0"]
        server = Server(words, tmp_path / f"{name}.log", variables)
        servers.append(server)
        server.start(ready)

    try:
        start("master", "master", "I have been elected leader")
        for number in range(services["worker"]["deploy"]["replicas"]):
            start(f"worker-{number}", "worker", "Successfully registered with master")
        yield address
    finally:
        for server in reversed(servers):
            while left := [each for each in processes_of(server.pid) if each.pid != server.pid]:
                kill(left)
            server.kill()


@pytest.mark.nightly
def test_the_services_run_a_job_on_what_the_image_holds(
    home: Path, variables: dict[str, str], cluster: str, tmp_path: Path
) -> None:
    words = [f"{home}/opt/kafkalog/bin/spark-submit", "--master", cluster]
    words += ["--executor-memory", "512m", "--conf", "spark.ui.enabled=false"]
    ran = subprocess.run(
        [*words, deployed_job.__file__, str(tmp_path)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = json.loads(ran.stdout.strip().splitlines()[-1])
    assert shown["rows"] == shown["offsets"] == deployed_job.ROWS
    logs = list(tmp_path.glob("worker-*/app-*/*/stderr"))
    assert {log.relative_to(tmp_path).parts[0] for log in logs} == {"worker-0", "worker-1"}


@pytest.mark.nightly
def test_the_command_of_the_image_answers(home: Path, variables: dict[str, str]) -> None:
    (text,) = [each.text for each in instructions() if each.word == "CMD"]
    (command,) = json.loads(text)
    path = f"{home}/opt/kafkalog/bin/{command}"
    said = subprocess.check_output([path, "--version"], env=variables, text=True)
    assert said.strip() == kafkalog.__version__


def test_the_pods_run_commands_that_there_are(tmp_path: Path) -> None:
    """A topic is mirrored as the StatefulSet does it, to its end, and verified as the CronJob."""
    command, variables = f"{Path(sys.executable).parent}/", {**os.environ}
    written = [f"{command}kafkalog", "append", str(tmp_path / "from"), "--topic", "flights"]
    subprocess.run(written, env=variables, input="hello\n", text=True, check=True)
    specs = {each["kind"]: each["spec"] for each in kubernetes()}
    query = specs["StatefulSet"]["template"]["spec"]["containers"][0]
    check = specs["CronJob"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    given = {each["name"]: each["value"] for each in query["env"]}
    for given_words in (query["args"], check["args"]):
        words = [word.replace("/logs", str(tmp_path)) for word in given_words if word != "--follow"]
        words[0] = command + words[0]
        ran = subprocess.run(
            words, env={**variables, **given}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    ends = [f"{command}kafkalog", "offsets", str(tmp_path / "to"), "--json"]
    assert json.loads(subprocess.check_output(ends, env=variables))["end"] == 1
