"""Skills: which are found, what is listed, and what `read_skill` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from halter import ToolOutcome
from halter.testing import Moment
from halter.toolbox import Skills
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere, text_of


@pytest.fixture
def skills(tmp_path: Path) -> Skills:
    (tmp_path / "work").mkdir()
    return Skills(tmp_path / "work", user=tmp_path / "user")


def write_skill(folder: Path, description: str = "Do it.", name: str = "", text: str = "The text.") -> Path:
    folder.mkdir(parents=True)
    name = name or folder.name
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n\n{text}\n")
    return folder


def test_skills_of_the_workspace_and_of_the_user(skills: Skills, tmp_path: Path) -> None:
    """They are found in three places; of two with one name the workspace's counts, and that is said."""
    first = write_skill(tmp_path / "work/.agents/skills/pdf", "Read PDF files.")
    write_skill(tmp_path / "work/.claude/skills/review", "Review code.")
    twice = write_skill(tmp_path / "user/pdf", "Another one.")
    write_skill(tmp_path / "user/zip")
    (tmp_path / "user/notes.txt").write_text("no skill")
    (tmp_path / "user/empty").mkdir()
    listed, problems = skills.listed()
    assert listed == "- pdf: Read PDF files.\n- review: Review code.\n- zip: Do it."
    assert problems == [f"{twice}/SKILL.md is not used: {first} has the same name"]
    assert text_of(call(skills.read_skill)) == "\n".join([listed, *problems])


def test_without_skills(skills: Skills) -> None:
    """There is nothing to list, and the tool says so."""
    assert skills.listed() == ("", [])
    assert text_of(call(skills.read_skill)) == "There are no skills."
    assert "there is no skill 'x'; there are none" in call(skills.read_skill, name="x").detail


def test_a_skill_is_read_when_it_is_used(skills: Skills, tmp_path: Path) -> None:
    """Its text without the front matter, its folder, and the names of its files; then those files."""
    folder = write_skill(tmp_path / "work/.agents/skills/pdf")
    (folder / "scripts").mkdir()
    (folder / "scripts/run.py").write_text("print(1)\n")
    read = text_of(call(skills.read_skill, name="pdf"))
    assert read == (f"The folder of this skill is {folder}\nThe text.\n[Other files of this skill: scripts/run.py]")
    assert text_of(call(skills.read_skill, name="pdf", path="scripts/run.py")) == "     1\tprint(1)"
    wrong = call(skills.read_skill, name="pfd")
    assert (wrong.status, "the skills are: pdf" in wrong.detail) == ("failed", True)


def test_the_name_may_be_missing_but_not_the_description(skills: Skills, tmp_path: Path) -> None:
    """Then the folder's name is the skill's; a skill that does not say when to use it is of no use."""
    for name, fields in {"one": "description: Do it.", "two": "name: two", "three": "description: ''"}.items():
        (tmp_path / "user" / name).mkdir(parents=True)
        (tmp_path / "user" / name / "SKILL.md").write_text(f"---\n{fields}\n---\n")
    listed, problems = skills.listed()
    assert listed == "- one: Do it."
    assert [each.partition(" is not used: ")[2] for each in problems] == [
        "it has no description in its front matter"
    ] * 2


def test_no_path_leads_out_of_a_skill(skills: Skills, tmp_path: Path) -> None:
    """Not `..`, not an absolute path, not a link out of the workspace, in a file, a folder or a place of skills."""
    secret = tmp_path / "secret"
    write_skill(secret)
    (tmp_path / "work/secret").write_text("of the workspace")
    folder = write_skill(tmp_path / "work/.agents/skills/pdf")
    (folder / "link").symlink_to(secret / "SKILL.md")
    (folder / "above").symlink_to("../../../../secret")
    mine = write_skill(tmp_path / "user/mine")
    (mine / "link").symlink_to(secret / "SKILL.md")
    for path in ("../../../secret", str(secret / "SKILL.md"), "link", "above/SKILL.md", "~/x", ""):
        assert call(skills.read_skill, name="pdf", path=path).status == "failed", path
    assert call(skills.read_skill, name="mine", path="link").status == "failed"
    (tmp_path / "work/.agents/skills/linked").symlink_to(secret)
    (tmp_path / "work/.claude").mkdir()
    (tmp_path / "work/.claude/skills").symlink_to(tmp_path)
    found, problems = skills.find()
    assert [each.name for each in found] == ["pdf", "mine"]
    assert [each.partition(" is not used: ")[0] for each in problems] == [
        str(tmp_path / "work/.agents/skills/linked/SKILL.md"),
        str(tmp_path / "work/.claude/skills"),
    ]
    assert all("out of the workspace" in each for each in problems)


def test_the_user_may_link_skills_from_anywhere(skills: Skills, tmp_path: Path) -> None:
    """Installers put links into the user's folder, which no agent can write."""
    write_skill(tmp_path / "elsewhere/pdf")
    (tmp_path / "user").mkdir()
    (tmp_path / "user/pdf").symlink_to(tmp_path / "elsewhere/pdf")
    assert text_of(call(skills.read_skill, name="pdf")).endswith("The text.")


def test_the_list_is_bounded(skills: Skills, tmp_path: Path) -> None:
    """However many there are; a last line says how many were left out, and the tool lists all of them."""
    for number in range(30):
        write_skill(tmp_path / f"user/skill-{number:02}", "word " * 1_000)
    listed, _ = skills.listed()
    assert len(listed) < 8_200
    assert "more are left out: read_skill without a name lists all.]" in listed
    assert "skill-29" in text_of(call(skills.read_skill))


@every_moment
@every_reason
def test_a_stop(skills: Skills, tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever it comes, the call has a result or says why it has none."""
    write_skill(tmp_path / "user/pdf")
    outcome = call_stopped(skills.read_skill, moment, reason, name="pdf")
    check(outcome, moment, reason)


def test_a_stop_everywhere(tmp_path: Path) -> None:
    """At every line: a call that is completed has the whole text, and no file is left open."""
    write_skill(tmp_path / "user/pdf", text="Line.\n" * 3)

    def verify(outcome: ToolOutcome) -> None:
        if outcome.status == "completed":
            assert text_of(outcome).endswith("Line.\nLine.\nLine.")

    points = stop_everywhere(
        lambda: (Skills(tmp_path, user=tmp_path / "user").read_skill, {"name": "pdf"}), verify, "stop"
    )
    assert points > 20
