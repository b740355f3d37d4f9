"""What runs unasked: commands that only read, and those that begin with a prefix that was allowed."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter.toolbox.terminal.approval.policy import approval_for
from halter.toolbox.terminal.approval.prefixes import read_prefixes

READS = [
    "ls -la",
    "ls",
    "cat a.py | head -n 5",
    "cd src && ls *.py",
    "pwd; whoami; date +%F",
    "grep -rn 'def ' --include='*.py' . | wc -l",
    "rg -n 'class .*' src",
    "find . -name '*.py' -not -path './.git/*'",
    "git status --short",
    "git -C sub log --oneline -5",
    "git diff HEAD~1 -- a.py",
    "git branch -a",
    "git show HEAD:a.py | sed -n 1,20p",
    "git config --get user.name",
    "git stash list",
    "sed -n '10,20p;30p' a.py",
    "awk '{ print $1 }' a.txt",
    "sort a.txt | uniq -c",
    "printf '%s\\n' a b",
    "du -sh . 2>/dev/null",
    "ls missing 2>&1 | head",
    "cat < a.txt",
    "echo $(git rev-parse HEAD) $HOME",
    "LC_ALL=C sort a.txt",
    "python3 --version",
    "/usr/bin/ls -l",
    "test -f a.py && echo yes",
    "wc -l $(find . -name '*.py')",
    "command -v rg",
    "date -u +%s",
    "jq .name package.json",
]
# What writes or starts something, and looks as if it did not.
ACTS = [
    "python -c 'print(1)'",
    "python3 a.py",
    "./ls",
    "sh a.sh",
    "bash -c ls",
    "function ls { touch x; }; ls",
    "ls() { touch x; }; ls",
    "alias ls='touch x'\nls",
    "env -S 'touch x'",
    "env touch x",
    "find . -exec touch x ;",
    "find . -name x -delete",
    "find . -fprint x",
    "find . $x",
    "find *",
    "echo bHM= | base64 -d | sh",
    "cat <<END > x\nEND",
    "cat <<END | sh\ntouch x\nEND",
    "git -c core.pager=x log",
    "git -p log",
    "git --exec-path=. status",
    "git --git-dir=x status",
    "git diff --ext-diff",
    "git diff --ext",
    "git log --output=x",
    "git log --outp=x",
    "git show --textconv",
    "git grep -Ox y",
    "git grep --open-files-in-pager=x y",
    "git branch new",
    "git branch -D old",
    "git tag v1",
    "git stash",
    "git config user.name x",
    "git config --get x --add y",
    "git fetch --upload-pack=x .",
    "git ls-remote --upload-pack=x .",
    "git log --format=%GK",
    "git help log",
    "git $x",
    "git lo*",
    "git diff $x",
    "git diff *",
    "rg --pre x y",
    "rg --pre=x y",
    "rg -z y",
    "rg y *",
    "rg --hostname-bin=x y",
    "sed e",
    "sed -n '1e touch x'",
    "sed -n 'w x' a",
    "sed -n 1p -i a",
    "sed -i s/a/b/ a",
    "awk 'BEGIN { system(\"touch x\") }'",
    "awk '{ print > \"x\" }' a",
    "awk '{ print | \"sh\" }' a",
    "awk 'BEGIN { \"touch x\" | getline }'",
    "awk -f a.awk",
    "awk -F $(echo , 'BEGIN{system(\"touch x\")}') '{print}'",
    "awk -F $x '{print}'",
    "printf %n PATH; ls",
    "printf '%-5hhn' PATH; ls",
    "cargo --version",
    "rustc --version",
    "yarn --version",
    "pytest --version",
    "awk -i inplace '{ print }' a",
    "gawk '@load \"x\"'",
    "sort -o x a",
    "sort -uo x a",
    "sort --compress-program=x a",
    "sort --comp x a",
    "sort $x",
    "uniq a b",
    "xxd a b",
    "tar --to-command=x -xf a",
    "tar tf a",
    "xargs ls",
    "ls | xargs touch",
    "tee x",
    "ls > x",
    "ls >> x",
    "ls &> x",
    "> x",
    "ls > $x",
    "ls > /dev/sda",
    "cat < /dev/tcp/localhost/80",
    "diff <(touch x) a",
    "echo $(touch x)",
    'echo "$(touch x)"',
    "echo `touch x`",
    "ls\ntouch x",
    "ls & touch x",
    "ls || touch x",
    "PATH=. ls",
    "LD_PRELOAD=./x ls",
    "GIT_PAGER=x git log",
    "PAGER=x git log",
    "BASH_ENV=x ls",
    "LC_ALL=/x ls",
    "IFS=x",
    "x=1",
    "test -v 'a[$(touch x)]'",
    "[ -v 'a[$(touch x)]' ]",
    "[ $x ]",
    "printf -v 'a[$(touch x)]' x",
    "printf $x",
    "echo ${x@P}",
    "echo $((a[$(touch x)]))",
    "eval ls",
    "exec ls",
    "command ls",
    "builtin echo x",
    ". ./x",
    "source x",
    "sudo ls",
    "nohup ls",
    "time ls",
    "timeout 5 ls",
    "date -s 12:00",
    "date 01010101",
    "file -C -m x",
    "tree -o x",
    "diff -l a b",
    "ls\u202e",
    "curl x",
    "rm x",
    "mkdir x",
    "unknown-program",
    "man ls",
    "less a",
    "env x=1 ls",
    "trap 'touch x' EXIT",
    "coproc ls",
    "'' ls",
    "l$x",
    "ls 'unclosed",
]


@pytest.mark.parametrize("text", READS)
def test_a_command_that_reads_runs_unasked(text: str) -> None:
    """Everyday looks at files and history need nobody."""
    assert approval_for(text, in_sandbox=True) is None


@pytest.mark.parametrize("text", ACTS)
def test_a_command_that_acts_is_asked_about(text: str) -> None:
    """Whatever writes, starts a program, or is not understood needs approval; without a sandbox in mode "auto" too."""
    need = approval_for(text, in_sandbox=False)
    assert need is not None
    assert need.reason
    assert not need.automatic
    assert not need.unattended
    in_sandbox = approval_for(text, in_sandbox=True)
    assert in_sandbox is not None
    assert in_sandbox.automatic


def test_git_reads_only_in_a_sandbox() -> None:
    """The configuration of a repository names programs that Git runs, and an agent can make a repository."""
    assert approval_for("git status", in_sandbox=False) is not None
    assert approval_for("ls", in_sandbox=False) is None


def test_the_list_of_dangers_gives_the_reason() -> None:
    """A danger is named first, asks in spite of an allowed prefix, and does not run where nobody can be asked."""
    need = approval_for("git push --force", in_sandbox=True, prefixes=read_prefixes(["git push"]))
    assert need is not None
    assert need.reason == "git push --force overwrites what others have pushed"
    assert (need.automatic, need.unattended, need.prefixes) == (True, False, ())


@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("git push origin main", [("git", "push")]),
        ("git add -A && git commit -m x && ls", [("git", "add"), ("git", "commit")]),
        ("npm run test -- -v", [("npm", "run", "test")]),
        ("pytest -q tests", [("pytest",)]),
        ("mkdir -p a && touch a/b", [("mkdir",), ("touch",)]),
        ("npm test | tail -5", [("npm", "test")]),
    ],
)
def test_a_prefix_is_offered_and_then_covers(text: str, prefixes: list[tuple[str, ...]]) -> None:
    """What is offered covers the command, each part of it, and nothing else."""
    need = approval_for(text, in_sandbox=False)
    assert need is not None
    assert list(need.prefixes) == prefixes
    assert need.is_covered is not None
    assert need.is_covered(need.prefixes)
    assert approval_for(text, in_sandbox=False, prefixes=prefixes) is None
    assert approval_for(f"{text}; unknown-program", in_sandbox=False, prefixes=prefixes) is not None
    assert approval_for(f"{text} > x", in_sandbox=False, prefixes=prefixes) is not None
    assert approval_for(f"X=1 {text}", in_sandbox=False, prefixes=prefixes) is not None
    assert not need.is_covered([("git", "pus"), ("echo",)])


@pytest.mark.parametrize(
    "text",
    [
        "python3 x.py",
        "bash x.sh",
        "./run.sh",
        "sudo ls",
        "env x",
        "xargs rm",
        "find . -exec x",
        "ssh host",
        "git -c a=b push",
        "git $x",
        "git",
        "uv run x",
        "npx x",
        "docker run x",
        "npm run",
        "make SHELL=./x",
        "git fetch --upload-pack=x",
        "git clone -u x y",
        "git rebase -x ls main",
        "tar xf a",
        "rsync a b",
        "eval x",
        "X=1 pytest",
        "pytest > x",
        "rm -rf x",
        "alias x=y",
        "awk '{ print > 1 }'",
        "vim a",
        "a; b; c; d; e; f",
    ],
)
def test_no_prefix_is_offered(text: str) -> None:
    """For a program that runs whatever it is given, for a file of the workspace, and for too many at once."""
    need = approval_for(text, in_sandbox=True)
    assert need is not None
    assert need.prefixes == ()


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("python", "python runs whatever it is given"),
        ("python3.12 -m", "python3.12 runs whatever it is given"),
        ("/usr/bin/python3", "python3 runs whatever it is given"),
        ("bash", "bash runs whatever it is given"),
        ("sh -c", "sh runs whatever it is given"),
        ("sudo", "sudo runs whatever it is given"),
        ("env", "env runs whatever it is given"),
        ("xargs", "xargs runs whatever it is given"),
        ("find . -exec", "find runs whatever it is given"),
        ("ssh host", "ssh runs whatever it is given"),
        ("uv run", "uv run runs whatever it is given"),
        ("git", "add the command of git, as in 'git push'"),
        ("git -c", "add the command of git, as in 'git push'"),
        ("npm run", "add the name of the script"),
        ("", "it names no program"),
        ("'", "not a prefix of a command"),
        ("ls\u202e", "cannot be seen"),
    ],
)
def test_a_prefix_that_would_allow_everything_is_refused(prefix: str, why: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(ValueError, match="prefix") as raised:
        read_prefixes([prefix])
    assert why in str(raised.value)


def test_a_prefix_is_compared_by_words() -> None:
    """Neither a longer name, nor quotes, nor an option that starts another program gets round it."""
    prefixes = read_prefixes(["git fetch", ["mkdir"]])
    assert approval_for("g'it' fetch origin", in_sandbox=False, prefixes=prefixes) is None
    for text in (
        "git fetchx",
        "mkdirx",
        "git 'fetch origin'",
        "git fetch --upload-pack=x",
        "git fetch $x",
        "git -C x fetch",
    ):
        assert approval_for(text, in_sandbox=False, prefixes=prefixes) is not None, text


# -- with bash itself --------------------------------------------------------------------------------------------------

PROGRAMS = [
    "ls",
    "cat",
    "echo",
    "find",
    "sort",
    "uniq",
    "sed",
    "awk",
    "rg",
    "git",
    "touch",
    "sh",
    "printf",
    "test",
    "date",
]
PIECES = [f"{each} " for each in PROGRAMS]
PIECES += [
    " ",
    "a ",
    "b ",
    "-n ",
    "-o x ",
    "-exec touch x ;",
    "--pre=touch ",
    "1p ",
    "e ",
    "'{ print }' ",
    "log ",
    "status ",
]
PIECES += [
    "-v ",
    "; ",
    "| ",
    "&& ",
    "\n",
    "> x",
    ">/dev/null ",
    "2>&1 ",
    "< a ",
    "$(",
    ") ",
    "`",
    '"',
    "'",
    "\\",
    "$x ",
    "* ",
]
PIECES += [
    "'a[$(touch x)]' ",
    "x=1 ",
    "PATH=. ",
    "${x:=1} ",
    "$((",
    "((",
    "))",
    "{ ",
    "}; ",
    "f() ",
    "<<E\n",
    "E\n",
    "<(",
    "~ ",
]
STUB = '#!/bin/sh\necho "${0##*/}" >> "$TRACE"\n'


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that only note that they were started."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in PROGRAMS:
        (folder / name).write_text(STUB)
        (folder / name).chmod(stat.S_IRWXU)
    return folder


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=10).map("".join))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_bash_writes_nothing_and_starts_nothing_else(
    stubs: Path, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """A line that is said to be read-only writes no file by itself, and starts only programs that read."""
    if approval_for(text, in_sandbox=True) is not None:
        return
    folder = tmp_path_factory.mktemp("lines")
    (folder / "a").touch()
    before = set(os.listdir(folder))
    trace = stubs / "trace"
    trace.write_text("")
    env = {"PATH": str(stubs), "TRACE": str(trace), "HOME": str(folder), "x": "a[$(touch x)]"}
    subprocess.run(["/bin/bash", "-c", text], cwd=folder, env=env, capture_output=True, check=False, timeout=20)
    assert set(os.listdir(folder)) == before
    started = set(trace.read_text().split())
    assert not started & {"touch", "sh"}
