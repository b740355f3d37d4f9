"""A program that attacks a sandbox from inside, and prints what came of it as JSON.

    python sandbox_attacks.py HOME namespaces|landlock

It is a program of its own because it also runs as an ordinary user, under another interpreter. So it may import nothing
but the standard library and the sandbox itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

# Each is a shell command that must fail, or print nothing of what it was after. {home} and {pid} are filled in.
ATTACKS = {
    "read a private key": "cat ~/.ssh/id_rsa",
    "read a private key by another path": "cat /proc/self/root$HOME/.ssh/id_rsa",
    "read a private key by a link": "ln -s ~/.ssh link; cat link/id_rsa",
    "read our database": "cat ~/.local/share/halter/sessions.db",
    "read the parent's environment": "cat /proc/{pid}/environ | tr '\\0' '\\n' | grep PARENT_SECRET",
    "read the parent's memory": "head -c1 /proc/{pid}/mem",
    "open the parent's descriptors": "cat /proc/{pid}/fd/{fd}",
    "write the shell's start file": "echo evil >> ~/.bashrc",
    "write a key for logging in": "echo evil >> ~/.ssh/authorized_keys",
    "write beside the workspace": "echo evil > ../outside",
    "write by a link out of the workspace": "ln -s .. up; echo evil > up/outside",
    "replace a file beside the workspace": "mv ../witness stolen",
    "write a script that runs elsewhere": "printf '#!/bin/sh\\necho evil > ../outside\\n' > s; chmod +x s; ./s",
    "write by python": "python3 -c \"open('../outside', 'w').write('evil')\"",
    "write by find": "find . -maxdepth 0 -exec sh -c 'echo evil > ../outside' \\; && test -e ../outside",
    "write by an encoded script": "echo ZWNobyBldmlsID4gLi4vb3V0c2lkZQ== | base64 -d | sh",
    "write by env -S": "env -S 'sh -c \"echo evil > ../outside\"'",
    "become root": "sudo -n true || su -c true </dev/null || exit 1",
    "signal the parent": "kill -0 {pid}",
    "leave by a new namespace": "unshare -Urm true",
    "mount something": "mount -t tmpfs none /mnt",
    "trace the parent": 'python3 -c "import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) and 1)"',
    "connect to a local server": "exec 3<>/dev/tcp/127.0.0.1/{port}",
    "connect to an abstract socket": (
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0halter-test-{pid}')\""
    ),
}
# These need namespaces: Landlock gives a right for a whole folder, or not at all.
ATTACKS_ON_GIT = {
    "write a hook": "echo evil > .git/hooks/pre-commit",
    "write Git's configuration": "git config core.fsmonitor evil",
    "replace Git's configuration": "echo evil > c; mv c .git/config",
    "move the repository away": "mv .git away",
    "remove the hooks": "rm -rf .git/hooks && test ! -e .git/hooks",
    "write our settings": "echo evil > .halter/config.toml",
    "send a datagram": "python3 -c \"import socket; socket.socket(2, 2).sendto(b'x', ('192.0.2.1', 9))\"",
}
# What every developer does all day has to work.
WORK = {
    "write a file": "echo text > file && cat file",
    "move a file": "mkdir -p folder && echo a > a && mv a folder/ && cat folder/a",
    "commit": "git add -A . && git -c user.name=a -c user.email=b commit -qm x && git log --oneline",
    "make a temporary file": "mktemp && test -w $TMPDIR",
    "run python": "python3 -c 'import json, ssl; print(1)'",
    "use a pipe and a subshell": "(echo one; echo two) | sort -r | head -1",
    "read the system": "cat /etc/hostname; ls /usr/bin > /dev/null",
}


def main() -> None:
    home, means = Path(sys.argv[1]), sys.argv[2]
    # HALTER_HOME, because the interpreter of an ordinary user has no library that would find our data.
    own = str(home / ".local/share/halter")
    os.environ |= {"HOME": str(home), "PARENT_SECRET": "PARENT_SECRET", "HALTER_HOME": own}
    work = home / "work"
    for folder in (".ssh", ".local/share/halter", "work/.halter"):
        (home / folder).mkdir(parents=True)
    for file in (".ssh/id_rsa", ".local/share/halter/sessions.db", "work/.halter/config.toml", "witness"):
        (home / file).write_text("SECRET")
    (home / ".bashrc").write_text("")
    subprocess.run(["git", "init", "-q", str(work)], check=True)

    from halter.toolbox.sandbox import sandbox as module
    from halter.toolbox.sandbox.namespaces import NamespacesUnavailable

    sandbox = module.Sandbox(work)
    if means == "landlock":

        def refuse(_: object) -> None:
            raise NamespacesUnavailable("as on a system that allows none")

        module.__dict__["Namespaces"] = refuse
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as abstract, open(home / ".ssh/id_rsa") as opened:
        server.bind(("127.0.0.1", 0))
        server.listen()
        abstract.bind(f"\0halter-test-{os.getpid()}")
        abstract.listen()
        known = {"pid": os.getpid(), "fd": opened.fileno(), "port": server.getsockname()[1]}
        found = {}
        for name, template in {**WORK, **ATTACKS, **ATTACKS_ON_GIT}.items():
            command = template
            for key, value in known.items():
                command = command.replace("{" + key + "}", str(value))
            process = sandbox.popen(
                ["bash", "-c", command],
                cwd=str(work),
                env={**os.environ, **sandbox.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            output = process.communicate(timeout=60)[0].decode(errors="replace")
            found[name] = [process.returncode, output]
    print(json.dumps({"found": found, "without_namespaces": sandbox.without_namespaces}))


if __name__ == "__main__":
    main()
