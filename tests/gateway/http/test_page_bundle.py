"""Modules and style sheets in one file: `halter.gateway.http.page_bundle`."""

from __future__ import annotations

import pytest

from halter.gateway.http.page_bundle import BundleError, bundle_script, bundle_styles


def test_modules_stand_behind_what_they_import() -> None:
    """Each module is there once, as a function that returns its exports; renamed imports keep their new names."""
    sources = {
        "main.js": 'import { a, b as c } from "./one.js";\nimport * as two from "./two.js";\nrun(a, c, two);',
        "one.js": 'import { x } from "./two.js";\nexport const a = x;\nexport function b() {}',
        "two.js": "export class x {}\nexport async function y() {}",
        "unused.js": "export const z = 1;",
    }
    assert bundle_script(sources, "main.js").split("\n") == [
        "const $two = (() => {",
        "class x {}",
        "async function y() {}",
        "return { x, y };",
        "})();",
        "const $one = (() => {",
        "const { x } = $two;",
        "const a = x;",
        "function b() {}",
        "return { a, b };",
        "})();",
        "const $main = (() => {",
        "const { a, b: c } = $one;",
        "const two = $two;",
        "run(a, c, two);",
        "return {  };",
        "})();",
    ]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"main.js": 'import { a } from "./none.js";'}, "there is no none.js"),
        ({"main.js": 'import { a } from "./b.js";', "b.js": 'import { c } from "./main.js";'}, "in a circle: main.js"),
        ({"main.js": 'import "./b.js";', "b.js": ""}, "does not support"),
        ({"main.js": "export default 1;"}, "does not support"),
        ({"main.js": "export let a = 1;"}, "does not support"),
    ],
)
def test_what_is_not_known_is_refused(sources: dict[str, str], said: str) -> None:
    """A module that the bundle would get wrong is an error when the gateway starts, not in somebody's browser."""
    with pytest.raises(BundleError, match=said):
        bundle_script(sources, "main.js")


def test_style_sheets_keep_their_order() -> None:
    """Each style sheet stands where it was imported, so that a later one still wins."""
    sources = {"styles.css": '/* all */\n@import "./b.css";\n@import "./a.css";\n', "a.css": "a {}", "b.css": "b {}"}
    assert bundle_styles(sources, "styles.css") == "/* all */\nb {}\na {}\n"
