"""Parses command lines whose meaning is certain, and refuses all others.

`shell_parser.py` finds dangers: it reads whatever it can. Here it is the other way round: a command runs without asking
because of what is found, so each word must be known as bash will see it. What is not in this list is `NotUnderstood`,
and then the user is asked:

- simple commands, joined by `;` `&` `&&` `||` `|` `|&` and line ends; comments
- words with quotes, backslashes, `$NAME`, `${NAME}`, `$?`, `$( )`, patterns such as `*.py`, and `~`
- assignments before a command
- `< FILE`, `> FILE`, `>> FILE`, `&> FILE`, `2>&1`

So there are no loops, functions, subshells, here-documents, process substitutions, arithmetic, arrays, backquotes or
brace expansions, and no invisible characters.

Why not tree-sitter-bash: it is made for editors and finds a tree in any text, even in one that bash refuses or reads
differently, and quotes would still have to be removed here. A test uses it as an oracle instead, together with bash:
both read what is accepted here in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["CommandLine", "NotUnderstood", "Redirection", "Word", "parse"]

_MAX_DEPTH: Final = 5
_MAX_LENGTH: Final = 20_000
_BLANK: Final = " \t"
_ENDS_WORD: Final = frozenset(" \t\n;&|<>()")
_RESERVED: Final = frozenset(
    {
        "!",
        "{",
        "}",
        "[[",
        "]]",
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
    }
    | {"select", "function", "time", "coproc", "in"}
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=", re.ASCII)
_PLAIN_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PROGRAM: Final = re.compile(r"\[|[\w.:/][\w.:/+@%,-]*")
_VARIABLE: Final = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|[?$!#0-9])", re.ASCII)
_REDIRECTION: Final = re.compile(r"(?:(\d*)(>>|>&|>\||<&|<>|>|<)|(&>>|&>))", re.ASCII)
_COPIES: Final = re.compile(r"\d*>&[12](?![^\s;&|<>()])", re.ASCII)  # 2>&1, >&2

Kind = Literal["fixed", "pattern", "joined", "unknown"]


class NotUnderstood(ValueError):
    """The text is not in the part of the grammar whose meaning is certain."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word as it is written, and what is known of the words that bash makes of it.

    - "fixed": exactly one word, *text*
    - "pattern": any number of words (file names); each begins with *text*
    - "joined": exactly one word, which begins with *text*
    - "unknown": any number of words, with anything in them
    """

    text: str
    kind: Kind = "fixed"

    @property
    def is_fixed(self) -> bool:
        return self.kind == "fixed"

    @property
    def is_no_option(self) -> bool:
        """Whether nothing that it becomes begins with a dash."""
        if self.kind == "fixed":
            return not self.text.startswith("-")
        return self.kind != "unknown" and bool(self.text) and not self.text.startswith("-")


@dataclass(frozen=True, slots=True)
class Redirection:
    """Where input comes from or output goes to."""

    sign: str  # "<", ">", ">>" or "&>"
    target: Word


@dataclass(slots=True)
class CommandLine:
    """One simple command. Those of its substitutions are commands of their own, in the same list."""

    words: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The program; empty if there are only assignments."""
        return self.words[0].text if self.words else ""

    def __bool__(self) -> bool:
        return bool(self.words or self.assignments or self.redirections)


def parse(text: str) -> list[CommandLine]:
    """All simple commands of *text*, those inside `$( )` too. Raises `NotUnderstood`."""
    if len(text) > _MAX_LENGTH:
        raise NotUnderstood("it is very long")
    hidden = next((each for each in text if not each.isprintable() and each not in "\n\t"), "")
    if hidden:
        raise NotUnderstood("it has characters that cannot be seen")
    return _Parser(text, 0).parse()


class _Parser:
    """One pass over one text."""

    def __init__(self, text: str, depth: int) -> None:
        self._text = text
        self._at = 0
        self._depth = depth
        self._commands: list[CommandLine] = []
        self._inner: list[CommandLine] = []
        self._now = CommandLine()
        self._awaits_command = False  # after | && ||: something has to follow

    def parse(self) -> list[CommandLine]:
        if self._depth > _MAX_DEPTH:
            raise NotUnderstood("it is nested deeply")
        self._read_until("")
        return [*self._commands, *self._inner]

    def parse_substitution(self, start: int) -> tuple[list[CommandLine], int]:
        """The commands from *start* to the bracket that closes, and the place behind that."""
        if self._depth > _MAX_DEPTH:
            raise NotUnderstood("it is nested deeply")
        self._at = start
        self._read_until(")")
        return [*self._commands, *self._inner], self._at

    def _read_until(self, closing: str) -> None:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in _BLANK:
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif char == ")" and closing:
                self._end_command(is_joint=False)
                self._at += 1
                return
            elif found := _REDIRECTION.match(text, self._at):
                self._read_redirection(found)
            elif char in ";&|\n":
                self._read_separator(char)
            elif char in "()":
                raise NotUnderstood("it has a subshell, a function or an array")
            else:
                self._read_argument()
        if closing:
            raise NotUnderstood("a bracket is not closed")
        self._end_command(is_joint=False)

    # -- between commands ---------------------------------------------------------------------------------------------

    def _read_separator(self, char: str) -> None:
        pair = self._text[self._at : self._at + 2]
        sign = pair if pair in ("&&", "||", "|&", ";;") else char
        if sign == ";;":
            raise NotUnderstood("it has a case statement")
        is_joint = sign in ("&&", "||", "|", "|&")
        if not self._now and (is_joint or char in ";&"):
            raise NotUnderstood("a command is missing")
        if char == "\n" and not self._now:
            self._at += 1  # an empty line, or one between | and the next command
            return
        self._at += len(sign)
        self._end_command(is_joint=is_joint)

    def _end_command(self, *, is_joint: bool) -> None:
        if not self._now:
            if self._awaits_command:
                raise NotUnderstood("a command is missing")
            return
        if self._now.words and not self._now.words[0].is_fixed:
            raise NotUnderstood("the name of the program is only known when it runs")
        self._commands.append(self._now)
        self._now = CommandLine()
        self._awaits_command = is_joint

    def _read_redirection(self, found: re.Match[str]) -> None:
        copies = _COPIES.match(self._text, self._at)
        if copies is not None:
            self._at = copies.end()
            return
        number, sign = found[1] or "", found[2] or found[3]
        if sign in (">&", "<&", "<>", ">|") or self._text.startswith(("<<", "<(", ">("), self._at + len(number)):
            raise NotUnderstood("it has a here-document, a process substitution or an unusual redirection")
        if number not in ("", "0", "1", "2"):
            raise NotUnderstood("it opens another descriptor")
        self._at = found.end()
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1
        target = None if self._text.startswith("#", self._at) else self._read_word()
        if target is None or (target.text.isdecimal() and self._text[self._at : self._at + 1] in ("<", ">")):
            raise NotUnderstood("a redirection has no file")
        self._now.redirections.append(Redirection("&>" if sign.startswith("&") else sign, target))

    # -- words --------------------------------------------------------------------------------------------------------

    def _read_argument(self) -> None:
        start = self._at
        is_first = not self._now.words
        assigned = _ASSIGNMENT.match(self._text, start) if is_first else None
        word = self._read_word()
        assert word is not None
        if assigned is not None:
            name = _PLAIN_ASSIGNMENT.match(self._text, start)
            if name is None:
                raise NotUnderstood("it has an unusual assignment")
            value = Word(word.text[name.end() - start :], word.kind)
            self._now.assignments.append((name[0][:-1], value))
            return
        if is_first and self._text[start : self._at].replace("\\\n", "") in _RESERVED:
            raise NotUnderstood(f"it has more than simple commands ({word.text})")
        if is_first and word.is_fixed and _PROGRAM.fullmatch(word.text) is None:
            raise NotUnderstood("the name of the program is unusual")
        self._now.words.append(word)

    def _read_word(self) -> Word | None:
        """The word that begins here; None if none does."""
        word = _WordBuilder()
        text, start = self._text, self._at
        while self._at < len(text) and text[self._at] not in _ENDS_WORD:
            char = text[self._at]
            if text.startswith("\\\n", self._at):
                if text[self._at + 2 : self._at + 3] not in ("", *_BLANK):
                    raise NotUnderstood("a word goes on in the next line")
                self._at += 2
            elif char in "\\'\"`$":
                self._read_special(char, word)
            else:
                word.add_bare(char, is_first=self._at == start)
                self._at += 1
        raw, following = text[start : self._at], text[self._at : self._at + 1]
        if following == "(":
            raise NotUnderstood("it has a function, an array or an extended pattern")
        if following in ("<", ">") and raw.startswith("{"):
            raise NotUnderstood("it opens another descriptor")  # {name}> file
        if raw == "[":
            return Word(raw)  # the program, and no pattern
        return word.finish() if raw.replace("\\\n", "") else None

    def _read_special(self, char: str, word: _WordBuilder) -> None:
        """Read on from a character that does not stand for itself."""
        text = self._text
        if char == "\\":
            if self._at + 1 >= len(text):
                raise NotUnderstood("it ends with a backslash")
            word.add(text[self._at + 1])
            self._at += 2
        elif char == "'":
            end = text.find("'", self._at + 1)
            if end < 0:
                raise NotUnderstood("a quote is not closed")
            word.add(text[self._at + 1 : end])
            self._at = end + 1
        elif char == '"':
            self._read_quoted(word)
        elif char == "$":
            self._read_dollar(word, is_quoted=False)
        else:
            raise NotUnderstood("it has backquotes")

    def _read_quoted(self, word: _WordBuilder) -> None:
        text = self._text
        self._at += 1
        word.add("")
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                return
            if text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "\\":
                following = text[self._at + 1 : self._at + 2]
                word.add(following if following in '$`"\\' else f"\\{following}")
                self._at += 2
            elif char == "`":
                raise NotUnderstood("it has backquotes")
            elif char == "$":
                self._read_dollar(word, is_quoted=True)
            else:
                word.add(char)
                self._at += 1
        raise NotUnderstood("a quote is not closed")

    def _read_dollar(self, word: _WordBuilder, *, is_quoted: bool) -> None:
        text = self._text
        if text.startswith("$((", self._at):
            raise NotUnderstood("it has arithmetic")
        if text.startswith("$(", self._at):
            inner = _Parser(text, self._depth + 1)
            commands, self._at = inner.parse_substitution(self._at + 2)
            self._inner += commands
            word.expand(is_quoted=is_quoted)
        elif found := _VARIABLE.match(text, self._at):
            self._at = found.end()
            word.expand(is_quoted=is_quoted)
        elif text[self._at + 1 : self._at + 2] in ("", " ", "\t", "\n", "/", ".", ",", ":", "|", ")", ";") or (
            is_quoted and text[self._at + 1] in "\"'"
        ):
            word.add("$")  # a dollar that is only that
            self._at += 1
        else:
            raise NotUnderstood("it has an unusual expansion")


class _WordBuilder:
    """A word that is being read."""

    def __init__(self) -> None:
        self._known: list[str] = []  # what it is certain to begin with
        self._kind: Kind = "fixed"
        self._has_brace = False
        self._braces: list[str] = []

    def add(self, text: str) -> None:
        """Add text that was quoted, and so is only that."""
        if self._kind == "fixed":
            self._known.append(text)

    def add_bare(self, char: str, *, is_first: bool) -> None:
        if char in "*?[":
            self._kind = "pattern" if self._kind == "fixed" else "unknown" if self._kind == "joined" else self._kind
        elif char == "~" and is_first:
            self._known.append("~")
            self._kind = "joined"
        elif char in "{}":
            self._has_brace = True
            self.add(char)
        else:
            self.add(char)
        if self._has_brace:
            self._braces.append(char)

    def expand(self, *, is_quoted: bool) -> None:
        """Add a variable or a substitution."""
        if not is_quoted or self._kind in ("pattern", "unknown"):
            self._kind = "unknown"
        else:
            self._kind = "joined"

    def finish(self) -> Word:
        braces = "".join(self._braces)
        if "," in braces or ".." in braces:
            raise NotUnderstood("it has a brace expansion")
        return Word("".join(self._known), self._kind)
