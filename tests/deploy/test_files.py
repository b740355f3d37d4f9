"""The container, the compose file and the units: what they start exists, and stops by itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from halter.cli.main import _parser
from halter.cli.settings import Settings, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
LONGEST = Settings().drain_timeout + Settings().exit_timeout
"""Seconds after which a gateway has ended, whatever its turns and tools do."""


def instruction(name: str) -> str:
    """The last instruction of this name in the Dockerfile, with its lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    found: str = re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)[-1]
    return found


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit; each may be set several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, is_set, value = line.partition("=")
        if is_set and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def gateways() -> dict[str, Any]:
    return {name: each for name, each in COMPOSE["services"].items() if name.startswith("gateway")}


def command_lines() -> list[list[str]]:
    """What `halter` is called with, anywhere here."""
    lines = [json.loads(instruction("CMD")), *(each["command"] for each in gateways().values())]
    for path in UNITS:
        program, *arguments = shlex.split(unit(path)["ExecStart"][0])
        if Path(program).name == "halter":
            lines.append(arguments)
    return lines


def test_every_command_line_is_understood() -> None:
    """The arguments for `halter` are accepted by its own parser, and start the gateway."""
    assert len(command_lines()) == 5
    assert json.loads(instruction("ENTRYPOINT")) == ["halter"]
    for arguments in command_lines():
        assert _parser().parse_args(arguments).command == "serve"


def test_every_variable_of_a_gateway_is_a_setting(tmp_path: Path) -> None:
    """A name with a mistake in it would be ignored, and so would what it was meant to set."""
    (tmp_path / "ca.pem").touch()
    values = {"NATS_PASSWORD": "secret", "HALTER_KEY": "a-key-of-sixteen-or-more", "HALTER_MODEL": "local"}

    def filled(text: str) -> str:
        return re.sub(r"\$\{(\w+)[^}]*\}", lambda found: values.get(found[1], ""), text)

    for gateway in gateways().values():
        env = {name: filled(value) for name, value in gateway["environment"].items()}
        settings = load(env=env | {"HALTER_HOME": str(tmp_path)})
        ours = {name for name in env if name.startswith("HALTER_")} - {"HALTER_KEY"}
        assert {f"HALTER_{name.upper()}" for name, origin in settings.origins.items() if origin in env} == ours
        assert settings.settings.cluster.split(",")[2] == "tls://halter:secret@nats3:4222"
        assert settings.settings.cluster_replicas == 3


def test_a_gateway_is_never_killed_before_its_own_exit() -> None:
    """Compose and systemd wait longer than a drain and the exit after it may take; only the gateway is signalled."""
    for gateway in gateways().values():
        assert float(gateway["stop_grace_period"].removesuffix("s")) > LONGEST
    found = unit(DEPLOY / "systemd" / "halter.service")
    assert float(found["TimeoutStopSec"][0]) > LONGEST
    assert (found["KillMode"], found["KillSignal"], found["SuccessExitStatus"]) == (["mixed"], ["SIGTERM"], ["143"])
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_every_volume_and_file_of_the_compose_file_is_there() -> None:
    """Each named volume is declared and used, and files come from this folder; certificates are the user's own."""
    sources = [each.split(":")[0] for service in COMPOSE["services"].values() for each in service["volumes"]]
    named = {each for each in sources if not each.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    for each in {each for each in sources if each.startswith(".")}:
        assert each.startswith("./certs") or (DEPLOY / each).exists(), each
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_the_container_does_not_run_as_root() -> None:
    """The user is named after everything that needs root, and the health check asks the gateway."""
    assert instruction("USER") == "halter"
    after = DOCKERFILE[DOCKERFILE.rindex("USER ") :]
    assert "RUN" not in after
    assert "/healthz" in after
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in kept, name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, from the package systemd")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about it, and finds it well protected."""
    text = path.read_text()
    program = shlex.split(unit(path)["ExecStart"][0])[0]
    copy = tmp_path / path.name
    copy.write_text(text.replace(program, str(Path(sys.executable).with_name(Path(program).name))))
    code, said = run("verify", "--man=no", "--recursive-errors=no", copy)
    assert (code, said) == (0, "")
    code, said = run("security", "--offline=yes", "--threshold=50", copy)
    assert code == 0, said[-300:]


def run(*arguments: str | Path) -> tuple[int, str]:
    """Run `systemd-analyze`; gives its exit code and what it said."""
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
