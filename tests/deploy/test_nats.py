"""The NATS servers of the deployment: TLS and accounts, and a backup that can be restored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import trustme

from halter import Agent
from halter.errors import StoreError
from halter.stores import NATSStore
from halter.testing import FakeProvider, ScriptedModel, answer
from tests.cli.commands.test_serve import get
from tests.cli.commands.test_workers import KEY, is_done, url_of
from tests.support.cli_program import Home, end
from tests.support.nats_server import NATSServer
from tests.support.ports import held_ports
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
PASSWORD = "for-the-tests"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates, as nats.conf wants them."""
    folder = tmp_path_factory.mktemp("certs")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own = authority.issue_cert("127.0.0.1", "localhost")
    own.private_key_pem.write_to_path(folder / "nats.key")
    for number, blob in enumerate(own.cert_chain_pems):
        blob.write_to_path(folder / "nats.pem", append=number > 0)
    return folder


class Servers:
    """Three servers with the configuration that is deployed; only addresses and folders differ."""

    def __init__(self, folder: Path, certificates: Path, ports: list[int]) -> None:
        self.certificates = certificates
        self.ports, self.monitors, routes = ports[:3], ports[3:6], ports[6:]
        text = (DEPLOY / "nats.conf").read_text().replace("/etc/nats/certs", str(certificates))
        env = os.environ | {"NATS_PASSWORD": PASSWORD}
        env |= {f"NATS_ROUTE_{number}": f"nats-route://127.0.0.1:{port}" for number, port in enumerate(routes, 1)}
        self.processes = []
        for number in range(3):
            own = text.replace("0.0.0.0:4222", f"127.0.0.1:{self.ports[number]}")
            own = own.replace("127.0.0.1:8222", f"127.0.0.1:{self.monitors[number]}")
            own = own.replace("0.0.0.0:6222", f"127.0.0.1:{routes[number]}")
            config = folder / f"nats{number}.conf"
            config.write_text(own)
            its = env | {"NATS_NAME": f"nats{number}", "NATS_STORE": str(folder / f"data{number}")}
            program = Path(sys.executable).with_name("nats-server")
            subprocess.run([program, "-t", "-c", config], env=its, check=True, stderr=subprocess.DEVNULL)
            self.processes.append(subprocess.Popen([program, "-c", config], env=its, stderr=subprocess.DEVNULL))

    @property
    def cluster(self) -> str:
        return ",".join(f"tls://halter:{PASSWORD}@127.0.0.1:{port}" for port in self.ports)

    def are_ready(self) -> bool:
        """Whether all of them say what the health check of the compose file asks for."""
        try:
            for port in self.monitors:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/healthz?js-enabled-only=true", timeout=2
                ) as found:
                    assert found.status == 200
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz", timeout=2) as found:
                    if b'"leader"' not in found.read():
                        return False
        except OSError:
            return False
        return True


@contextlib.contextmanager
def starting(folder: Path, certificates: Path) -> Iterator[Servers]:
    with held_ports(9) as ports:
        found = Servers(folder, certificates, ports)
        try:
            yield found
        finally:
            for process in found.processes:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Servers]:
    with starting(tmp_path_factory.mktemp("nats"), certificates) as found:
        wait_until(found.are_ready, 60)
        yield found


def test_a_store_opens_while_its_servers_choose_their_leader(tmp_path: Path, certificates: Path) -> None:
    """Gateways that started together with their servers gave up: these leave the first requests without an answer."""
    trusted = ssl.create_default_context(cafile=certificates / "ca.pem")
    with starting(tmp_path, certificates) as servers:
        with NATSStore(servers.cluster.split(","), replicas=3, patience=30, tls=trusted) as store:
            store.join()
            wait_until(lambda: len(store.nodes()) == 1)


def test_gateways_share_sessions_over_tls(home: Home, provider: FakeProvider, servers: Servers) -> None:
    """The command line of the units and the variables of the compose file start gateways that find each other."""
    provider.script(answer("Hello."))
    home.env |= {
        "HALTER_KEY": KEY,
        "HALTER_CLUSTER": servers.cluster,
        "HALTER_CLUSTER_CA": str(servers.certificates / "ca.pem"),
        "HALTER_CLUSTER_REPLICAS": "3",
    }
    with home.start("serve", "--port", "0") as one, home.start("serve", "--port", "0") as two:
        first, second = url_of(one), url_of(two)
        assert get(f"{first}/v1/sessions", KEY, {"id": "s"})[0] == 201
        assert get(f"{second}/v1/sessions/s/messages", KEY, {"text": "Hi."})[0] == 202
        wait_until(lambda: is_done(first, "s") and is_done(second, "s"))
        assert get(f"{first}/healthz", KEY)[0] == 200

        def is_whole() -> bool:
            shown = home.run("cluster").out
            return "2 nodes" in shown and shown.count("lag 0") == 3

        wait_until(is_whole, 60)  # a replica may be behind for a moment
        for each in (one, two):
            assert end(each, signal.SIGTERM).code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("url", "trusts"),
    [
        ("tls://halter:{password}@127.0.0.1:{port}", False),
        ("tls://halter:wrong@127.0.0.1:{port}", True),
        ("tls://127.0.0.1:{port}", True),
    ],
)
def test_who_is_not_meant_to_does_not_get_in(servers: Servers, url: str, *, trusts: bool) -> None:
    """A server with an unknown certificate is not spoken to; a wrong password or none is refused."""
    options: dict[str, Any] = (
        {"tls": ssl.create_default_context(cafile=servers.certificates / "ca.pem")} if trusts else {}
    )
    with pytest.raises(StoreError) as caught:
        NATSStore(url.format(password=PASSWORD, port=servers.ports[0]), patience=1, **options)
    assert PASSWORD not in str(caught.value)


def test_an_authority_that_is_not_there_is_named(home: Home) -> None:
    """A wrong path is an error of the settings, not of the network."""
    ended = home.run("serve", "--cluster", "tls://localhost:1", HALTER_CLUSTER_CA="/nowhere/ca.pem", HALTER_KEY=KEY)
    assert ended.code != 0
    assert "cluster_ca: '/nowhere/ca.pem'" in ended.err
    assert "Traceback" not in ended.err


def backup(action: str, folder: Path, servers: str) -> str:
    """Run the script of the deployment."""
    done = subprocess.run(
        [sys.executable, DEPLOY / "nats_backup.py", action, folder],
        env=os.environ | {"HALTER_CLUSTER": servers},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sessions_are_restored_from_a_backup(tmp_path: Path) -> None:
    """What was saved while a gateway had the sessions is read, owned and continued with new servers."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    agent = Agent(ScriptedModel("One.", "Two.", "Three."))
    with NATSServer(tmp_path / "old") as server:
        with NATSStore(server.url) as store:
            with agent.session("a", store) as session:
                session.run("First.")
            session = agent.session("b", store)  # it is open while the backup is made
            session.run("Second.")
            make_bucket(server.url)
            said = backup("save", tmp_path / "backup", server.url)
            kept = {each.id: store.read(each.id) for each in store.sessions()}
            session.close()
    assert [line.partition(":")[0] for line in said.splitlines()] == [
        "KV_halter_leases",
        "KV_halter_stops",
        "halter_log",
    ]
    with NATSServer(tmp_path / "new") as server:
        backup("load", tmp_path / "backup", server.url)
        with NATSStore(server.url) as store:
            assert {each.id: store.read(each.id) for each in store.sessions()} == kept
            assert store.owners()["b"].generation == 1
            with agent.session("b", store) as session:
                assert session.run("Go on.").text == "Three."
            assert store.owners() == {}


def make_bucket(url: str) -> None:
    """Make the bucket that a gateway makes for stops."""

    async def make() -> None:
        client = await nats.connect(url)
        await client.jetstream().create_key_value(bucket="halter_stops")
        await client.close()

    asyncio.run(make())


def test_a_server_ends_by_the_signal_of_its_unit(tmp_path: Path) -> None:
    """SIGUSR2 ends it in time, after its clients were sent elsewhere."""
    config = tmp_path / "nats.conf"
    config.write_text('listen: "127.0.0.1:-1"\nlame_duck_duration: 1s\nlame_duck_grace_period: 100ms\n')
    program = Path(sys.executable).with_name("nats-server")
    process = subprocess.Popen([program, "-c", config, "--pid", tmp_path / "pid"], stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if b"Server is ready" in line:
            break
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=30)
