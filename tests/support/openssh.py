"""OpenSSH's own server for tests: one `sshd -i` for each connection, with a key and a configuration of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Self

import asyncssh

from halter.toolbox.remote.ssh import SSHMachine

PROGRAM = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
MISSING = "needs OpenSSH's server: apt install openssh-server (as root, scripts/setup does it in a container)"
AT_MOST = 20.0


class OpenSSH:
    """Listens on loopback. Whoever has the key that it made is logged in as the user who runs the tests."""

    def __init__(self, folder: Path, home: Path, *settings: str) -> None:
        self.home = home  # where commands begin
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._children: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        host, user = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        self._write("host_key", host.export_private_key())
        self._write("user_key", user.export_private_key())
        self._write("authorized_keys", user.export_public_key())
        self._write("known_hosts", f"[127.0.0.1]:{self.port} ".encode() + host.export_public_key())
        lines = [
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "PidFile none",
            "UsePAM no",
            "PermitRootLogin yes",
            "StrictModes no",  # the folder of a test may be below one that others can write
            *settings,
        ]
        self._write("config", "\n".join(lines).encode() + b"\n")

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.write_bytes(data)
        path.chmod(0o600)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many there were so far."""
        return len(self._children)

    def machine(self) -> SSHMachine:
        return SSHMachine(
            "127.0.0.1",
            port=self.port,
            username=pwd.getpwuid(os.geteuid()).pw_name,
            client_keys=[self._folder / "user_key"],
            known_hosts=self._folder / "known_hosts",
            directory=str(self.home),
        )

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, and Debian makes it when it boots
        self._thread.start()
        return self

    def _accept(self) -> None:
        assert PROGRAM is not None
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, (self._folder / "log").open("ab") as log:
                line = [PROGRAM, "-i", "-e", "-f", str(self._folder / "config")]
                number = connection.fileno()
                self._children.append(subprocess.Popen(line, stdin=number, stdout=number, stderr=log))

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(AT_MOST)
        for child in self._children:
            try:
                child.wait(AT_MOST)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
