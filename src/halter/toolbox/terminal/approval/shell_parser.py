"""Parses a shell command as a shell would, without running anything. `shlex` supports neither pipes nor substitutions.

A command line becomes simple commands: their words without quotes, where their output goes, and their input. What is
inside `$( )`, backquotes and `<( )` is parsed as well and belongs to the command around it. Variables stay as they are
written.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Final

_BLANK: Final = " \t"
_ENDS: Final = frozenset(";&|\n()")
_ESCAPES: Final = {"a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CODE: Final = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")
_HEREDOC: Final = re.compile(r"<<(-?)[ \t]*")
_SENDS: Final = re.compile(r"&>>|&>|<>|>>|>\||>&|>")
_MAX_DEPTH: Final = 20


class UnparsableCommand(ValueError):
    """The text is not a complete shell command, or is nested too deeply."""


@dataclass(slots=True)
class Simple:
    """One simple command."""

    words: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)  # the files that its output is sent to
    fed: list[str] = field(default_factory=list)  # here-documents and here-strings
    inner: list[str] = field(default_factory=list)  # what is run to make its words: $( ), backquotes, <( )
    is_piped: bool = False  # its input is the output of the one before

    def __bool__(self) -> bool:
        return bool(self.words or self.targets or self.fed or self.inner)


def read_commands(text: str, depth: int = 0) -> list[Simple]:
    """All simple commands of *text* in order, those inside substitutions among them. Raises `UnparsableCommand`."""
    if depth > _MAX_DEPTH:
        raise UnparsableCommand("it is nested too deeply to be checked")
    commands = _ShellReader(text).read()
    if "\\\n" in text:  # bash may also join lines in the middle of a sign, such as $(
        with contextlib.suppress(UnparsableCommand):
            commands += _ShellReader(text.replace("\\\n", "")).read()
    return [*commands, *(one for each in commands for inner in each.inner for one in read_commands(inner, depth + 1))]


class _ShellReader:
    """One pass over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._commands: list[Simple] = []
        self._now = Simple()
        self._heredocs: list[
            tuple[Simple, str, bool, bool]
        ] = []  # the command, the last line, whether tabs are stripped, whether it is quoted

    def read(self) -> list[Simple]:
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in _BLANK:
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                self._skip_comment()
            elif char in "<>" or (char == "&" and text[self._at + 1 : self._at + 2] == ">"):
                self._read_redirection()
            elif char in _ENDS:
                self._end_command(char)
            else:
                self._read_word()
        self._finish(is_pipe=False)
        return self._commands

    # -- between commands ---------------------------------------------------------------------------------------------

    def _skip_comment(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _end_command(self, char: str) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        is_pipe = char == "|" and following != "|"
        self._at += 2 if following and (char + following) in {"&&", "||", ";;", "|&"} else 1
        self._finish(is_pipe=is_pipe)
        if char == "\n":
            self._read_heredocs()

    def _finish(self, *, is_pipe: bool) -> None:
        if self._now:
            self._commands.append(self._now)
            self._now = Simple(is_piped=is_pipe)
        else:  # `| \n sh`, or `( curl x ) | sh`
            self._now.is_piped = self._now.is_piped or is_pipe

    def _read_heredocs(self) -> None:
        for command, until, strips, is_quoted in self._heredocs:
            lines: list[str] = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                line = line.lstrip("\t") if strips else line
                if line == until:
                    break
                lines.append(line)
            body = "\n".join(lines)
            command.fed.append(body)
            if not is_quoted:
                command.inner += _substitutions(body)
        self._heredocs = []

    # -- redirections -------------------------------------------------------------------------------------------------

    def _read_redirection(self) -> None:
        text, sign_at = self._text, self._at
        if text.startswith(("<(", ">("), sign_at):
            self._read_word()
        elif text.startswith("<<<", sign_at):
            self._at += 3
            self._now.fed.append(self._operand())
        elif found := _HEREDOC.match(text, sign_at):
            start = self._at = found.end()
            until = self._operand()
            is_quoted = any(char in self._text[start : self._at] for char in "'\"\\")
            self._heredocs.append((self._now, until, bool(found[1]), is_quoted))
        elif text.startswith("<", sign_at) and not text.startswith("<>", sign_at):
            self._at += 2 if text.startswith("<&", sign_at) else 1
            self._operand()
        else:
            sign = _SENDS.match(text, sign_at)
            assert sign is not None
            self._at = sign.end()
            target = self._operand()
            if not (sign[0] == ">&" and (target.isdigit() or target == "-")):
                self._now.targets.append(target)
            self._drop_descriptor(sign_at)

    def _drop_descriptor(self, sign_at: int) -> None:
        """Take the 2 of `2>` off the words; `echo 2 > x` keeps it."""
        words = self._now.words
        if words and words[-1].isdigit() and self._text[sign_at - 1].isdigit():
            words.pop()

    def _operand(self) -> str:
        while self._text[self._at : self._at + 1] and self._text[self._at] in _BLANK:
            self._at += 1
        before = len(self._now.words)
        if self._at < len(self._text) and self._text[self._at] not in _ENDS:
            self._read_word()
        return self._now.words.pop() if len(self._now.words) > before else ""

    # -- words --------------------------------------------------------------------------------------------------------

    def _read_word(self) -> None:
        word: list[str] = []
        text = self._text
        is_process = text.startswith(("<(", ">("), self._at)
        while self._at < len(text):
            char = text[self._at]
            if char == "\\":
                following = text[self._at + 1 : self._at + 2]
                word.append("" if following == "\n" else following)
                self._at += 2
            elif char == "'":
                word.append(self._until_quote(self._at + 1))
            elif char == '"':
                self._read_double(word)
            elif char == "`":
                self._now.inner.append(self._until_backquote())
                word.append("\0")
            elif char == "$":
                self._read_dollar(word, in_quotes=False)
            elif is_process:
                is_process = False
                self._at += 1
                self._now.inner.append(self._until_bracket())
                word.append("\0")
            elif char in _BLANK or char in _ENDS or char in "<>":
                break
            else:
                word.append(char)
                self._at += 1
        self._add_word("".join(word))

    def _add_word(self, word: str) -> None:
        # $IFS separates words, and its value is known.
        pieces = re.split(r"\$\{IFS[^}]*\}|\$IFS(?:\$\d)?", word)
        self._now.words += [piece for piece in pieces if piece] if len(pieces) > 1 else [word]

    def _read_double(self, word: list[str]) -> None:
        text = self._text
        self._at += 1
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\":
                following = text[self._at + 1 : self._at + 2]
                word.append("" if following == "\n" else following if following in '$`"\\' else char + following)
                self._at += 2
            elif char == "`":
                self._now.inner.append(self._until_backquote())
                word.append("\0")
            elif char == "$":
                self._read_dollar(word, in_quotes=True)
            else:
                word.append(char)
                self._at += 1
        raise UnparsableCommand("a double quote is not closed")

    def _read_dollar(self, word: list[str], *, in_quotes: bool) -> None:
        text, at = self._text, self._at
        if text.startswith("$(", at):
            body = self._bracketed(at + 1)
            is_sum = body.startswith("(") and _closing(body, 0, "(", ")") == len(body) - 1
            self._now.inner += _substitutions(body) if is_sum else [body]
            word.append("\0")
        elif text.startswith("${", at):
            end = _closing(text, at + 1, "{", "}")
            self._now.inner += _substitutions(text[at + 2 : end])
            word.append(text[at : end + 1])
            self._at = end + 1
        elif text.startswith("$'", at) and not in_quotes:
            word.append(self._ansi_quoted(at + 2))
        elif text.startswith('$"', at) and not in_quotes:
            self._at += 1
            self._read_double(word)
        else:
            word.append("$")
            self._at += 1

    def _bracketed(self, start: int) -> str:
        end = _closing(self._text, start, "(", ")")
        self._at = end + 1
        return self._text[start + 1 : end]

    def _until_bracket(self) -> str:
        return self._bracketed(self._at)

    def _until_quote(self, start: int) -> str:
        end = self._text.find("'", start)
        if end < 0:
            raise UnparsableCommand("a single quote is not closed")
        self._at = end + 1
        return self._text[start:end]

    def _until_backquote(self) -> str:
        found = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self._text, self._at)
        if found is None:
            raise UnparsableCommand("a backquote is not closed")
        self._at = found.end()
        return re.sub(r"\\([`$\\])", r"\1", found[1])

    def _ansi_quoted(self, start: int) -> str:
        found = re.compile(r"((?:[^'\\]|\\.)*)'", re.DOTALL).match(self._text, start)
        if found is None:
            raise UnparsableCommand("a quote is not closed")
        self._at = found.end()
        return re.sub(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", _unescape, found[1])


def _unescape(found: re.Match[str]) -> str:
    code = _CODE.fullmatch(found[1])
    if code is None:
        return _ESCAPES.get(found[1], found[1])
    number = int(code[4], 8) if code[4] else int(code[1] or code[2] or code[3], 16)
    return chr(number) if number <= 0x10FFFF else ""  # noqa: PLR2004  (the last there is)


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """Where the bracket at *start* is closed; brackets in quotes do not count."""
    depth, at = 0, start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in "'\"":
            at = _end_of_quote(text, at)
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise UnparsableCommand(f"a {opening} is not closed")


def _end_of_quote(text: str, start: int) -> int:
    quote, at = text[start], start + 1
    while at < len(text) and text[at] != quote:
        if quote == '"' and text.startswith("$(", at):
            at = _closing(text, at + 1, "(", ")")
        at += 2 if quote == '"' and text[at] == "\\" else 1
    if at >= len(text):
        raise UnparsableCommand(f"a {quote} is not closed")
    return at


def _substitutions(text: str) -> list[str]:
    """What is run when *text* is expanded as in double quotes."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text.startswith("$(", at):
            end = _closing(text, at + 1, "(", ")")
            found.append(text[at + 2 : end])
            at = end
        elif text[at] == "`":
            end = text.find("`", at + 1)
            if end < 0:
                break
            found.append(text[at + 1 : end])
            at = end
        at += 1
    return found
