"""Sixty commands that developers use every day work in the default tools, in the default mode."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from halter import Agent, toolbox
from halter.models import ToolCall
from halter.testing import ScriptedModel

# Each begins in a new session's workspace, a Git repository with a small project, and after those before it.
COMMANDS = {
    "ls": "ls -la",
    "cat": "cat app.py",
    "head and tail": "head -n 1 app.py; tail -n 1 app.py",
    "grep": "grep -rn 'def ' --include='*.py' .",
    "find": "find . -name '*.py' -not -path './.git/*' -exec wc -l {} +",
    "sed in place": "sed -i 's/one/uno/' notes.txt && grep -q uno notes.txt",
    "awk": "awk '{ n += NF } END { print n }' notes.txt",
    "sort and uniq": "printf 'b\\na\\nb\\n' | sort | uniq -c",
    "cut, tr and paste": "cut -d: -f1 /etc/passwd | head -3 | tr a-z A-Z | paste -sd,",
    "diff": "cp notes.txt copy.txt; echo more >> copy.txt; diff notes.txt copy.txt; test $? -eq 1",
    "patch": "diff -u notes.txt copy.txt > change.diff; patch -s notes.txt change.diff",
    "xargs": "ls *.py | xargs -n1 basename",
    "tee": "echo logged | tee -a log.txt",
    "cp, mv and rm": "cp app.py b.py && mv b.py c.py && rm c.py",
    "mkdir and rmdir": "mkdir -p a/b/c && rmdir -p a/b/c",
    "ln": "ln -s app.py link.py && readlink link.py && rm link.py",
    "chmod": "chmod +x run.sh && ./run.sh",
    "touch and stat": "touch new && stat -c %s new",
    "du and df": "du -sh . && df -h . > /dev/null",
    "tar": "tar czf project.tar.gz app.py notes.txt && tar tzf project.tar.gz",
    "gzip": "gzip -k notes.txt && zcat notes.txt.gz > /dev/null && rm notes.txt.gz",
    "zip by python": "python3 -m zipfile -c project.zip app.py && python3 -m zipfile -l project.zip",
    "sha256sum": "sha256sum app.py",
    "base64": "echo text | base64 | base64 -d",
    "date": "date +%F",
    "env": "env | grep -q ^PATH=",
    "mktemp": "f=$(mktemp) && echo x > $f && rm $f",
    "here-document": "cat <<END > here.txt\ntext\nEND\ngrep -q text here.txt",
    "process substitution": "diff <(echo a) <(echo a)",
    "a pipe that ends early": "yes | head -3",
    "a background process": "sleep 0.1 & wait $!",
    "kill a child": "sleep 60 & kill $!; ! wait $!",
    "timeout": "timeout 10 true",
    "ps": "ps aux | head -3",
    "a pseudo-terminal": "python3 -c 'import pty; raise SystemExit(pty.spawn([\"true\"]))'",
    "git status": "git status --short",
    "git add and commit": "git add -A && git commit -qm 'Work' && git log --oneline | head -3",
    "git diff": "echo '# end' >> app.py && git diff --stat | grep app.py",
    "git stash": "git stash -q && git stash pop -q",
    "git branch": "git checkout -qb topic && git commit -qam 'Topic' && git checkout -q main",
    "git merge": "git merge -q topic",
    "git rebase": "git checkout -qb other HEAD~1 && git commit -q --allow-empty -m 'Other' && git rebase -q main",
    "git tag and show": "git tag v1 && git show --stat v1 | head -3",
    "git blame": "git blame -s app.py | head -2",
    "git grep": "git grep -n def",
    "git clone of a folder": "git clone -q . clone && rm -rf clone",
    "git archive": "git archive --format=tar HEAD | tar t",
    "python": "python3 -c 'import json, sqlite3, ssl; print(1)'",
    "python module": "python3 -m py_compile app.py && python3 app.py",
    "unittest": "python3 -m unittest -q test_app.py",
    "venv": "python3 -m venv --without-pip env && env/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'",
    "pip list": "python3 -m pip list --disable-pip-version-check > list.txt",
    "pip install of a wheel": (
        "python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --target lib "
        "./wheels/tiny-1.0-py3-none-any.whl && PYTHONPATH=lib python3 -c 'import tiny'"
    ),
    "pytest": "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -q test_app.py",
    "uv": "uv --version && uv venv -q --offline uvenv",
    "a server on loopback": (
        "python3 -m http.server 8765 --bind 127.0.0.1 > /dev/null 2>&1 & server=$!; "
        "for i in $(seq 300); do curl -sf http://127.0.0.1:8765/app.py > got && break; sleep 0.1; done; "
        "kill $server; cmp got app.py"
    ),
    "gcc": "gcc -O1 -o hello hello.c && ./hello",
    "make": "make -s && ./hello",
    "node": 'node -e \'require("fs").writeFileSync("n.txt", "x"); console.log(process.version)\'',
    "npm": "npm init -y",
}
NEEDS = {
    "uv": "uv",
    "gcc": "gcc",
    "make": "make",
    "node": "node",
    "npm": "npm",
    "patch": "patch",
    "ps": "ps",
    "a server on loopback": "curl",
}
PROJECT = {
    "app.py": "def answer() -> int:\n    return 42\n\n\nif __name__ == '__main__':\n    print(answer())\n",
    "test_app.py": (
        "import unittest\n\nimport app\n\n\nclass TestApp(unittest.TestCase):\n"
        "    def test_answer(self) -> None:\n        self.assertEqual(app.answer(), 42)\n"
    ),
    "notes.txt": "one two\nthree\n",
    "run.sh": "#!/bin/sh\necho ran\n",
    "hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n',
    "Makefile": "hello: hello.c\n\t$(CC) -o hello hello.c\n",
    ".gitignore": "env\nuvenv\nlib\nhello\n",
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a small project."""
    place = tmp_path_factory.mktemp("everyday")
    for name, text in PROJECT.items():
        (place / name).write_text(text)
    make_wheel(place / "wheels")
    return place


def make_wheel(folder: Path) -> None:
    folder.mkdir()
    files = {
        "tiny.py": "",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def results(workspace: Path) -> dict[str, str]:
    """What came of all commands, each a call of a model in the same session."""
    # A person does this: Git's configuration is read-only in the sandbox.
    setup = "git init -q -b main . && git config user.name me && git config user.email me@localhost"
    subprocess.run(["bash", "-c", setup], cwd=workspace, check=True)
    calls = [ToolCall(str(n), "terminal", json.dumps({"command": each})) for n, each in enumerate(COMMANDS.values())]
    agent = Agent(ScriptedModel(*calls, "done"), toolbox.default(workspace), max_steps=len(calls) + 1, approve="auto")
    with pytest.MonkeyPatch.context() as patch, agent.session() as session:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # python3 is this one
        outcomes = session.run("Work.").outcomes
    return dict(zip(COMMANDS, (str(each.content) for each in outcomes), strict=True))


def test_there_are_sixty() -> None:
    """The list is as long as the documentation says, and the page names each of them."""
    page = (Path(__file__).parents[2] / "docs/guides/sandbox.md").read_text()
    assert len(COMMANDS) == 60
    assert "These 60 everyday commands" in page
    assert f"in the default mode: {', '.join(COMMANDS)}." in page


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_command_works(results: dict[str, str], name: str) -> None:
    """It ends with exit code 0."""
    program = NEEDS.get(name, "bash")
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    assert re.search(r"\[exit code 0\b", results[name]), results[name]
