"""The fields at the beginning of a Markdown file, compared with what a YAML parser reads."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from halter.toolbox.instructions.front_matter import read_front_matter

SAME_AS_YAML = {
    "plain": "description: Extract text from PDF files.",
    "several": "name: pdf\ndescription: Read it.\nlicense: MIT",
    "double quoted": r'description: "Say \"hi\": \u00e9, # and \\ done."',
    "single quoted": "description: 'It''s here: # no comment'",
    "folded": "description: >\n  First line\n  second line.\n\n  A paragraph.\nname: x",
    "folded, stripped": "description: >-\n  First line\n  second line.\nname: x",
    "literal": "description: |\n  First line\n  second line.\nname: x",
    "continued": "description: First line\n  second line.\nname: x",
    "quoted over lines": 'description: "First line\n  second line."\nname: x',
    "comment": "# about it\ndescription: Text # the rest\nname: x",
    "nested": "metadata:\n  author: me\n  name: not this\ndescription: Text\nname: x",
    "list": "allowed:\n  - Read\n  - name: not this\ndescription: Text",
    "no value": "description:\nname: x",
    "quoted key": '"description": Text',
}


@pytest.mark.parametrize("written", SAME_AS_YAML.values(), ids=SAME_AS_YAML)
def test_it_reads_what_yaml_reads(written: str) -> None:
    """Name and description are those that a parser for all of YAML finds."""
    fields, text = read_front_matter(f"---\n{written}\n---\n\nBody\n---\nmore")
    expected = YAML(typ="safe").load(written)
    for name in ("name", "description"):
        assert fields.get(name, "") == str(expected.get(name) or "").rstrip("\n")
    assert text == "Body\n---\nmore"


def test_a_colon_in_a_plain_text_is_kept() -> None:
    """YAML refuses such a text, and people write it nevertheless."""
    assert read_front_matter("---\ndescription: Use it when: always.\n---\n")[0] == {
        "description": "Use it when: always."
    }


@pytest.mark.parametrize("text", ["", "# A title\n---\nname: x\n---\n", "---\nname: x\n", " ---\nname: x\n---\n"])
def test_without_front_matter_all_is_text(text: str) -> None:
    """What does not begin with a line of three dashes, or never closes it, has no fields."""
    assert read_front_matter(text) == ({}, text)


def test_anything_can_be_read() -> None:
    """No text makes it fail: values that are cut off are read as far as they go."""
    for value in ('"', "'", '"a\\', "'a''", ">", "|", ":", "[a, b]", "{", "&x", "- a"):
        fields, _ = read_front_matter(f"---\ndescription: {value}\n---\n")
        assert isinstance(fields["description"], str)
