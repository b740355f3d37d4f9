"""The strict parser: it reads as bash and tree-sitter-bash do, or says that it does not understand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_bash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from halter.toolbox.terminal.approval.command_line import NotUnderstood, Word, parse

GRAMMAR = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
# Pieces of command lines, so that many of their combinations mean something.
PIECES = [" ", "  ", "\n", ";", "&", "&&", "||", "|", "|&", ">", ">>", "<", "2>&1", "&>", "<<", "(", ")", "{", "}", "#"]
PIECES += [
    "ls",
    "cat",
    "a",
    "b c",
    "-x",
    "--pre=x",
    "'",
    '"',
    "\\",
    "$",
    "$x",
    "${x}",
    "$(",
    "`",
    "$((",
    "*",
    "?",
    "[",
    "]",
]
PIECES += [
    "~",
    "=",
    "x=1",
    "!",
    "if",
    "then",
    "fi",
    "{a,b}",
    "{}",
    "..",
    ",",
    "\\\n",
    "\t",
    "é",
    "1",
    "2",
    "$'",
    "/dev/null",
]


def names_of(text: str) -> list[str]:
    """The programs of a text, by our parser."""
    return sorted(each.name for each in parse(text) if each.words)


def words_of(text: str) -> list[list[str]]:
    return [[word.text for word in each.words] for each in parse(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -l", [["ls", "-l"]]),
        ("ls 'a b' \"c d\" e\\ f", [["ls", "a b", "c d", "e f"]]),
        ("a|b && c || d; e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("ls # and more\ncat x", [["ls"], ["cat", "x"]]),
        ("ls \\\n -l", [["ls", "-l"]]),
        ("l's'", [["ls"]]),
        ("echo $(cat x | wc)", [["echo", ""], ["cat", "x"], ["wc"]]),
        ('echo "$(ls)" b', [["echo", "", "b"], ["ls"]]),
        ("[ -f x ]", [["[", "-f", "x", "]"]]),
        ("a |\n b", [["a"], ["b"]]),
        ("ls 2>&1 >/dev/null", [["ls"]]),
        ("git show HEAD@{1}", [["git", "show", "HEAD@{1}"]]),
        ("X=1 ls", [["ls"]]),
        ("", []),
    ],
)
def test_what_is_plain_is_read(text: str, words: list[list[str]]) -> None:
    """Words have no quotes any more; commands inside substitutions come after the others."""
    assert words_of(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "for i in 1; do ls; done",
        "if ls; then ls; fi",
        "! ls",
        "f() { ls; }",
        "function f { ls; }",
        "(ls)",
        "{ ls; }",
        "[[ a == b ]]",
        "echo `ls`",
        "echo $((1 + 1))",
        "echo ${x:-y}",
        "echo ${x@P}",
        "echo ${!x}",
        "echo $'a'",
        'echo $"a"',
        "cat <<END\nx\nEND",
        "cat <<< x",
        "diff <(ls) >(cat)",
        "ls {a,b}",
        "ls {1..3}",
        "a=(1 2)",
        "a[0]=1 ls",
        "x+=1 ls",
        "$x",
        '"$x" y',
        "l? -l",
        "''",
        "ls >&x",
        "ls 3>x",
        "ls {fd}>/dev/null",
        "if\\\n ls",
        ">\\\n",
        ">2>&1",
        ">#",
        "ls <>x",
        "ls &&",
        "; ls",
        "ls ;; ls",
        "ls 'x",
        'ls "x',
        "ls $(cat",
        "ls x\\",
        "ls\u202e x",
        "ls \u200b x",
        "ls\x00",
        "ls\r\n",
        "echo " + "$(" * 10 + "ls" + ")" * 10,
        "echo " + "x" * 30_000,
    ],
)
def test_what_is_not_certain_is_refused(text: str) -> None:
    """Everything else of the shell's grammar, and what cannot be seen."""
    with pytest.raises(NotUnderstood):
        parse(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x", Word("x")),
        ("'*'", Word("*")),
        ("src/*.py", Word("src/", "pattern")),
        ("*", Word("", "pattern")),
        ("~/x", Word("~", "joined")),
        ('"a$x"', Word("a", "joined")),
        ("a$x", Word("a", "unknown")),
        ('*"$x"', Word("", "unknown")),
        ('"$x"*', Word("", "unknown")),
    ],
)
def test_what_is_known_of_a_word(text: str, word: Word) -> None:
    """A pattern becomes several words that begin alike, a quoted variable one word, any other variable anything."""
    [command] = parse(f"ls {text}")
    assert command.words[1] == word


def is_valid(text: str) -> bool:
    """Whether bash finds no error in a text."""
    return subprocess.run(["bash", "-n", "-c", "--", text], capture_output=True, check=False).returncode == 0


def programs_in_tree(text: str) -> list[str] | None:
    """The programs of a text, by tree-sitter-bash; None if it finds errors."""
    tree = GRAMMAR.parse(text.encode())
    if tree.root_node.has_error:
        return None
    found: list[str] = []
    nodes = [tree.root_node]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        name = node.child_by_field_name("name") if node.type == "command" else None
        if name is not None and name.text is not None:
            found.append(name.text.decode())
        elif node.type == "test_command" and node.text is not None and node.text.startswith(b"["):
            found.append("[")
    return sorted(found)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(max_examples=250, deadline=None, derandomize=True)
def test_it_agrees_with_bash_and_with_tree_sitter(text: str) -> None:
    """What the parser accepts is valid for bash, and tree-sitter-bash finds the same programs in it."""
    try:
        names = names_of(text)
    except NotUnderstood:
        return
    assert is_valid(text), text
    theirs = programs_in_tree(text)
    assume(theirs is not None)  # it does not know all of the grammar
    assert theirs is not None
    quoted = any(char in "'\"\\" for each in theirs for char in each)  # it leaves the quotes in the names
    assert quoted or theirs == names, text


@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_bash_sees_the_same_words(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """A program that bash starts is given the words that the parser has found, if they are fixed."""
    try:
        commands = parse(f"show {text}")
    except NotUnderstood:
        return
    first = commands[0]
    assume(all(word.is_fixed for word in first.words) and not first.redirections)
    assume(len(commands) == 1)
    folder = tmp_path_factory.mktemp("words")
    script = f'show() {{ printf "%s\\0" "$@" > {folder}/words; }}\nshow {text}'
    subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False, timeout=20)
    seen = (folder / "words").read_bytes().split(b"\0")[:-1] if Path(folder, "words").exists() else None
    assert seen is not None
    assert [each.decode() for each in seen] == ([word.text for word in first.words[1:]] or [""])
