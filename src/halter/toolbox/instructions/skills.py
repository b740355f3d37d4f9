"""Skills: folders with a SKILL.md, in the open format of agentskills.io.

The prompt lists their names and descriptions. The model reads the text of a skill, and other files in its folder, with
the tool `read_skill` when it needs them. Skills are looked for when they are listed or read, so a new one is found.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter._data_paths import find_paths
from halter.cancel.context import checkpoint
from halter.toolbox.files.backend import LocalFile
from halter.toolbox.files.text_reader import show
from halter.toolbox.files.workspace import OutsideWorkspace, Workspace
from halter.toolbox.instructions.front_matter import read_front_matter
from halter.toolbox.instructions.text_file import UnreadableFile, one_line, read_text
from halter.tools.tool import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.models.types import Image
    from halter.tools.tool import Tool

__all__ = ["Skill", "Skills"]

_FILE: Final = "SKILL.md"
_IN_WORKSPACE: Final = (".agents/skills", ".claude/skills")
_USER_FOLDER: Final = "skills"  # in Halter's data folder
_MAX_FOLDERS: Final = 200  # in each place
_MAX_SKILL: Final = 65_536  # bytes of a SKILL.md
_MAX_NAME: Final = 64
_MAX_DESCRIPTION: Final = 1_024
_MAX_LISTED: Final = 8_000  # characters of the list in the prompt
_MAX_FILES: Final = 50  # that are named with the text of a skill
_MAX_LINES: Final = 10_000


class Skill(NamedTuple):
    """One skill. Paths in it are walked from *base*, and no link leads out of that."""

    name: str
    description: str
    base: Workspace
    folder: str  # below the base
    text: str  # what follows the front matter

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.base.root / self.folder

    def line(self) -> str:
        """Its line in a list."""
        return f"- {self.name}: {self.description}"


class Skills:
    """The skills of a workspace and of its user, and the tool `read_skill`.

    Those of the workspace are in `.agents/skills` and `.claude/skills`, the user's in `skills` where Halter keeps its
    data. If two have the same name, the first one counts.
    """

    def __init__(self, workspace: str | os.PathLike[str] = ".", *, user: str | os.PathLike[str] | None = None) -> None:
        """*user* is the folder with the user's skills, if it is another one."""
        self._workspace = Path(workspace).expanduser().absolute()
        self._user = find_paths().data / _USER_FOLDER if user is None else Path(user).expanduser().absolute()

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """The tool, for `Agent(tools=...)`."""
        return [self.read_skill]

    @tool
    def read_skill(self, name: str | None = None, path: str | None = None) -> Iterator[str | Image]:
        """Read a skill: instructions for a kind of task. Read it before you begin such a task.

        Args:
            name: the name of the skill; leave it out to list all skills.
            path: a file in the skill's folder, to read that instead.

        """
        found, problems = self.find()
        if name is None:
            yield "\n".join([*(each.line() for each in found), *problems]) or "There are no skills."
            return
        skill = next((each for each in found if each.name == name), None)
        if skill is None:
            names = ", ".join(each.name for each in found)
            raise ValueError(f"there is no skill {name!r}; {f'the skills are: {names}' if names else 'there are none'}")
        if path is not None:
            yield from _read_file(skill, path)
            return
        yield f"The folder of this skill is {skill.path}"
        yield skill.text
        yield from _other_files(skill)

    def find(self) -> tuple[list[Skill], list[str]]:
        """The skills, and a line about each that cannot be used. Blocks."""
        found: dict[str, Skill] = {}
        problems: list[str] = []
        for base, folder in self._folders(problems):
            checkpoint()
            path = base.root / folder / _FILE
            try:
                skill = _read_skill(base, folder)
            except UnreadableFile as error:
                problems.append(f"{path} is not used: {error}")
                continue
            if skill is None:
                continue
            first = found.setdefault(skill.name, skill)
            if first is not skill:
                problems.append(f"{path} is not used: {first.path} has the same name")
        return list(found.values()), problems

    def listed(self) -> tuple[str, list[str]]:
        """The list for the prompt, which is empty if there are no skills, and the problems of `find()`. Blocks."""
        found, problems = self.find()
        lines: list[str] = []
        room = _MAX_LISTED
        for each in found:
            line = each.line()
            room -= len(line) + 1
            if room < 0:
                lines.append(f"[{len(found) - len(lines)} more are left out: read_skill without a name lists all.]")
                break
            lines.append(line)
        return "\n".join(lines), problems

    def _folders(self, problems: list[str]) -> Iterator[tuple[Workspace, str]]:
        """Folders that may be skills. Links in a workspace stay in it; in the user's own folder they lead anywhere."""
        workspace = Workspace(self._workspace)
        for place in _IN_WORKSPACE:
            with _recording(problems, workspace.root / place):
                for name in _names_in(workspace, place):
                    yield workspace, f"{place}/{name}"
        with _recording(problems, self._user):
            for name in _names_in(Workspace(self._user), "."):
                with contextlib.suppress(NotADirectoryError):  # a file beside the folders
                    yield Workspace(self._user / name), "."


@contextlib.contextmanager
def _recording(problems: list[str], place: Path) -> Iterator[None]:
    """Record a problem for a folder that exists and cannot be listed."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problems.append(f"{place} is not used: {one_line(error)}")


def _names_in(workspace: Workspace, place: str) -> list[str]:
    """The sorted names in a folder."""
    with workspace.find(place) as found:
        directory = found.open_directory()
    try:
        return sorted(os.listdir(directory))[:_MAX_FOLDERS]  # noqa: PTH208  (of a descriptor)
    finally:
        os.close(directory)


def _read_skill(base: Workspace, folder: str) -> Skill | None:
    try:
        file = read_text(base, f"{folder}/{_FILE}", _MAX_SKILL)
    except UnreadableFile as error:
        if isinstance(error.__cause__, NotADirectoryError):  # a file beside the folders
            return None
        raise
    if file is None:
        return None
    fields, text = read_front_matter(file.shown())
    description = " ".join(fields.get("description", "").split())[:_MAX_DESCRIPTION]
    if not description:
        raise UnreadableFile("it has no description in its front matter")
    name = " ".join((fields.get("name") or (base.root / folder).name).split())[:_MAX_NAME]
    return Skill(name, description, base, folder, text)


def _read_file(skill: Skill, path: str) -> Iterator[str | Image]:
    """A file in the skill's folder. Neither `..` nor an absolute path leads out of the folder."""
    parts = Path(path).parts
    if not parts or ".." in parts or Path(path).is_absolute():
        raise OutsideWorkspace(f"{path!r} is not a path in the folder of the skill {skill.name!r}")
    descriptor = skill.base.open(f"{skill.folder}/{path}")
    with LocalFile(descriptor) as file:
        yield from show(file, path, 1, _MAX_LINES)


def _other_files(skill: Skill) -> Iterator[str]:
    """The names of the other files in the folder and in the folders in it."""
    files: list[str] = []
    for name in _names_in(skill.base, skill.folder):
        try:
            files += [f"{name}/{each}" for each in _names_in(skill.base, f"{skill.folder}/{name}")]
        except OSError:  # not a folder, or one that cannot be read
            files.append(name)
    files = [each for each in files if each != _FILE]
    if files:
        more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
        yield f"[Other files of this skill: {', '.join(files[:_MAX_FILES])}{more}]"
