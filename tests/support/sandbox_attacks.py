"""A program that attacks its own sandbox from inside the default tools, and prints what came of it as JSON.

    python sandbox_attacks.py HOME namespaces|landlock

It is a program of its own because it also runs as an ordinary user. `landlock` is for a system that allows no
namespaces. docs/security.md has a row for each attack.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

# Each is a command for bash that must fail, or print nothing of what it was after. Names in braces are filled in.
ATTACKS = {
    "read a private key": "cat ~/.ssh/id_rsa",
    "read a private key by /proc/self/root": "cat /proc/self/root$HOME/.ssh/id_rsa",
    "read a private key by the parent's root": "cat /proc/{pid}/root$HOME/.ssh/id_rsa",
    "read a private key by a link": "ln -sfn ~/.ssh link; cat link/id_rsa",
    "read a private key by a hard link": "ln ~/.ssh/id_rsa hard && cat hard",
    "read a private key by io_uring": "python3 {io_uring} ~/.ssh/id_rsa",
    "uncover hidden files": "umount ~/.ssh; cat ~/.ssh/id_rsa",
    "enter the parent's namespaces": "nsenter -t {pid} -U -m cat ~/.ssh/id_rsa",
    "read our database": "cat ~/.local/share/halter/sessions.db",
    "write a key of the gateway": "echo '[]' > ~/.local/share/halter/keys.json",
    "read the parent's environment": "cat /proc/{pid}/environ | tr '\\0' '\\n' | grep PARENT_SECRET",
    "find secrets in the environment": "env | grep SECRET",
    "read the parent's memory": "head -c1 /proc/{pid}/mem",
    "open the parent's descriptors": "cat /proc/{pid}/fd/{fd}",
    "use an inherited descriptor": "cat <&{fd}",
    "trace the parent": 'python3 -c "import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) and 1)"',
    "signal the parent": "kill -0 {pid}",
    "write the shell's start file": "echo evil >> ~/.bashrc",
    "write a key for logging in": "echo evil >> ~/.ssh/authorized_keys",
    "write beside the workspace": "echo evil > ../outside",
    "write by a link out of the workspace": "ln -sfn .. up; echo evil > up/outside",
    "write by a link that is swapped": (
        "mkdir -p d; for i in $(seq 10); do ln -sfn d swap; ln -sfn .. swap; echo evil > swap/outside; done; "
        "test -e ../outside"
    ),
    "replace a file beside the workspace": "mv ../witness stolen",
    "write by a script": "printf '#!/bin/sh\\necho evil > ../outside\\n' > s; chmod +x s; ./s",
    "write by a function": "function f { echo evil > ../outside; }; f",
    "write by python -c": "python3 -c \"open('../outside', 'w').write('evil')\"",
    "write by find -exec": "find . -maxdepth 0 -exec sh -c 'echo evil > ../outside' \\; && test -e ../outside",
    "write by base64 into sh": "echo ZWNobyBldmlsID4gLi4vb3V0c2lkZQ== | base64 -d | sh",
    "write by env -S": "env -S 'sh -c \"echo evil > ../outside\"'",
    "write settings of the kernel": "echo core > /proc/sys/kernel/core_pattern",
    "become root": "sudo -n true || su -c true </dev/null || exit 1",
    "make a device": "mknod device b 8 0",
    "leave by a new namespace": "unshare -Urm true",
    "mount something": "mount -t tmpfs none /mnt",
    "reach the gateway": "exec 3<>/dev/tcp/127.0.0.1/{port}",
    "reach the gateway by another address": "exec 3<>/dev/tcp/localhost/{port}",
    "reach another machine": "exec 3<>/dev/tcp/192.0.2.1/80",
    "connect to an abstract socket": (
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0halter-test-{pid}')\""
    ),
}
# Landlock alone does not stop these: it gives a right for a whole folder or not at all, and knows TCP only.
NEED_NAMESPACES = {
    "write a hook": "echo evil > .git/hooks/pre-commit",
    "write Git's configuration": "git config core.fsmonitor evil",
    "replace Git's configuration": "echo evil > c; mv c .git/config",
    "write a hook of a submodule": "echo evil > .git/modules/lib/inner/hooks/post-checkout",
    "move the repository away": "mv .git away",
    "remove the hooks": "rm -rf .git/hooks && test ! -e .git/hooks",
    "write our settings": "echo evil > .halter/config.toml",
    "send a datagram": "python3 -c \"import socket; socket.socket(2, 2).sendto(b'x', ('192.0.2.1', 9))\"",
    "use the socket of another program": (
        "python3 -c \"import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ['HOME'] + '/program.sock')\""
    ),
    "write to another terminal": "test -e {pty} && echo evil > {pty}",
}
# Code is in the same sandbox, so one attack of each kind is enough there. These do not need namespaces.
BY_CODE = (
    "read a private key",
    "read our database",
    "read the parent's environment",
    "open the parent's descriptors",
    "find secrets in the environment",
    "write the shell's start file",
    "write beside the workspace",
    "signal the parent",
    "reach the gateway",
)
IO_URING = Path(__file__).with_name("io_uring_read.py")


def main() -> None:
    home, means = Path(sys.argv[1]), sys.argv[2]
    make_home(home)
    from halter.toolbox.sandbox import sandbox as module
    from halter.toolbox.sandbox.namespaces import NamespacesUnavailable

    if means == "landlock":

        def refuse(_: object) -> None:
            raise NamespacesUnavailable("as on a system that allows none")

        module.__dict__["Namespaces"] = refuse
    with contextlib.ExitStack() as stack:
        known = targets(home, stack)
        found = {}
        everything = {**ATTACKS, **NEED_NAMESPACES}
        commands = [filled(each, known) for each in everything.values()]
        found["terminal"] = dict(zip(everything, by_terminal(home / "work", commands), strict=True))
        some = [filled(everything[each], known) for each in BY_CODE]
        found["execute_code"] = dict(zip(BY_CODE, by_code(home / "work", some), strict=True))
    print(json.dumps(found))


def make_home(home: Path) -> None:
    """A home directory with everything that the attacks are after."""
    # HALTER_HOME, because its default needs a library to be found.
    own = str(home / ".local/share/halter")
    os.environ |= {"HOME": str(home), "PARENT_SECRET": "PARENT_SECRET", "HALTER_HOME": own}
    work = home / "work"
    for folder in (".ssh", ".local/share/halter", "work/.halter", "work/.git/modules/lib/inner/hooks"):
        (home / folder).mkdir(parents=True)
    for file in (".ssh/id_rsa", ".local/share/halter/sessions.db", "work/.halter/config.toml", "witness"):
        (home / file).write_text("SECRET")
    (home / ".bashrc").write_text("")
    (work / ".git/modules/lib/inner/HEAD").write_text("ref: refs/heads/main\n")
    subprocess.run(["git", "init", "-q", str(work)], check=True)


def targets(home: Path, stack: contextlib.ExitStack) -> dict[str, object]:
    """What is open in our own process: a server as the gateway is, sockets, a file, and a terminal."""
    server = stack.enter_context(socket.socket())
    server.bind(("127.0.0.1", 0))
    for address in (f"\0halter-test-{os.getpid()}", str(home / "program.sock")):
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(address)
        other.listen()
    server.listen()
    _, terminal = os.openpty()
    opened = os.open(home / ".ssh/id_rsa", os.O_RDONLY)
    return {
        "pid": os.getpid(),
        "fd": opened,
        "port": server.getsockname()[1],
        "pty": os.ttyname(terminal),
        "io_uring": IO_URING,
    }


def filled(command: str, known: dict[str, object]) -> str:
    for key, value in known.items():
        command = command.replace("{" + key + "}", str(value))
    return command


def by_terminal(work: Path, commands: list[str]) -> list[tuple[int, str]]:
    """Run commands, each as a call of a model. Gives their exit codes and outputs."""
    results = run(work, [("terminal", {"command": each}) for each in commands])
    return [(int(re.findall(r"\[exit code (-?\d+)", each)[-1]), each) for each in results]


def by_code(work: Path, commands: list[str]) -> list[tuple[int, str]]:
    """Run them all from one call of `execute_code`."""
    code = f"""
import json, subprocess
ended = [subprocess.run(["bash", "-c", each], stdin=-3, stdout=-1, stderr=-2) for each in {commands!r}]
print(json.dumps([(each.returncode, each.stdout.decode(errors="replace")) for each in ended]))
"""
    [result] = run(work, [("execute_code", {"code": code})])
    found: list[tuple[int, str]] = json.loads(result)
    return found


def run(work: Path, calls: list[tuple[str, dict[str, str]]]) -> list[str]:
    """Make calls of the default tools, one after another in one session. Gives their results."""
    from halter import Agent, toolbox
    from halter.models import ToolCall
    from halter.testing import ScriptedModel

    steps = [ToolCall(str(number), name, json.dumps(given)) for number, (name, given) in enumerate(calls)]
    agent = Agent(ScriptedModel(*steps, "done"), toolbox.default(work), max_steps=len(steps) + 1, approve="auto")
    with agent.session() as session:
        outcomes = session.run("Attack.").outcomes
    assert [each.status for each in outcomes] == ["completed"] * len(calls), outcomes
    return [str(each.content) for each in outcomes]


if __name__ == "__main__":
    main()
