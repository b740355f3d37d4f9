"""What a person is shown who has to allow a call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halter.views.approval_text import approval_answers, approval_pages
from halter.views.items import Question


def question(command: str, **fields: object) -> Question:
    asked = Question("q", "approval", "it may change something", tool="terminal", arguments={"command": command})
    for name, value in fields.items():
        setattr(asked, name, value)
    return asked


def test_the_reason_comes_first() -> None:
    """Then the tool, and all arguments."""
    assert approval_pages(question("a\nb")) == ["it may change something. Run this command?\ncommand: a\nb"]


@given(st.text(max_size=8000))
def test_nothing_is_hidden(command: str) -> None:
    """All pages together show every character that can be seen, and the others as escapes; each page is short."""
    pages = approval_pages(question(command))
    whole = "".join(pages).replace("\n", "")
    assert all(each.isprintable() for each in whole)
    visible = [each for each in command.replace("\t", "") if each.isprintable()]
    shown = iter(whole)
    assert all(each in shown for each in visible)
    assert all(len(page) <= 1600 and page.count("\n") < 20 for page in pages)


def test_a_long_command_has_pages() -> None:
    """Its end is on the last one."""
    pages = approval_pages(question("echo " + "x" * 5000 + "; rm -rf /"))
    assert len(pages) == 4
    assert "rm -rf" not in "".join(pages[:-1])
    assert pages[-1].endswith("; rm -rf /")


def test_what_may_be_answered() -> None:
    """For the session: the prefixes if there are any, else every call or this one. For always: prefixes only."""
    labels = [each.label for each in approval_answers(question("x", covers="call"), may_keep=True)]
    assert labels == ["Deny", "Allow once", "Allow exactly this call in this session"]
    every = approval_answers(question("x"), may_keep=True)[-1]
    assert (every.label, every.value) == ("Allow every call of terminal in this session", "session")
    asked = question("git push", prefixes=(("git", "push"),))
    assert [each.value for each in approval_answers(asked, may_keep=False)] == [False, True, "session"]
    always = approval_answers(asked, may_keep=True)[-1]
    assert (always.label, always.value, always.key) == ("Always allow `git push …`", "always", "a")
