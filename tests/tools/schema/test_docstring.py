"""Docstrings in the three common styles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halter.tools.schema.docstring import Doc, read_docstring


def test_no_docstring() -> None:
    """A function without a docstring has an empty description."""
    assert read_docstring(None) == Doc("", {})


def test_plain_text_is_all_description() -> None:
    """A docstring without sections is the description as it is, paragraphs included."""
    assert (
        read_docstring("Finds things.\n\n    Slowly: be patient.\n").description
        == "Finds things.\n\nSlowly: be patient."
    )


def test_google_style() -> None:
    """Args are taken one by one, continued lines joined, and other sections are left out."""
    doc = read_docstring(
        """Find pages.

        Mind the quota.

        Args:
            query: what to look for,
                in plain words
            limit (int, optional): how many: at most 5
            *rest: more

            late: after a blank line
        Returns:
            pages: not a parameter
        """
    )
    assert doc.description == "Find pages.\n\nMind the quota."
    assert doc.parameters == {
        "query": "what to look for, in plain words",
        "limit": "how many: at most 5",
        "rest": "more",
        "late": "after a blank line",
    }


def test_numpy_style() -> None:
    """Underlined sections are read, with two names on one line."""
    doc = read_docstring(
        """Find pages.

        Parameters
        ----------
        query : str
            What to look for,
            in plain words.
        low, high : int, optional
            The range.

        Returns
        -------
        list
            Pages.
        """
    )
    assert doc == Doc(
        "Find pages.", {"query": "What to look for, in plain words.", "low": "The range.", "high": "The range."}
    )


def test_sphinx_style() -> None:
    """Fields are read, with and without a type."""
    doc = read_docstring(
        """Find pages.

        :param query: what to look for,
            in plain words
        :param int limit: how many
        :type query: str
        :returns: pages
        """
    )
    assert doc == Doc("Find pages.", {"query": "what to look for, in plain words", "limit": "how many"})


@given(st.text(alphabet=st.sampled_from("ab :\n -*Args:Parameters\t()param")))
def test_any_text_is_a_docstring(text: str) -> None:
    """Whatever the docstring, reading it does not fail, and nothing is invented."""
    doc = read_docstring(text)
    assert all(words in " ".join(text.split()) for words in doc.parameters.values())
