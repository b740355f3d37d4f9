"""The page's modules as one script, and its style sheets as one.

A browser takes several milliseconds for each file, and the page has about sixty. So `main.js` and `styles.css` are sent
with everything that they import. This is not a compiler: it supports only the forms of `import` and `export` that the
page uses, and rejects all others. Each module becomes a function that returns its exports, so names never clash.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BundleError", "bundle_script", "bundle_styles"]

_IMPORT: Final = re.compile(
    r'^import (?:\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from "\./(?P<name>\w+)\.js";$', re.MULTILINE
)
_RENAMED: Final = re.compile(r"(\w+) as (\w+)")
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:class|function|const) (\w+))", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_STYLES: Final = re.compile(r'^@import "\./(?P<name>\w+\.css)";$', re.MULTILINE)


class BundleError(ValueError):
    """A module is missing, imports itself in a circle, or has an import or export of another form."""


def bundle_script(sources: Mapping[str, str], main: str) -> str:
    """The module *main* and all that it imports, each once and after its own imports."""
    written: dict[str, str] = {}
    _add_module(sources, main, written, ())
    return "\n".join(written.values())


def bundle_styles(sources: Mapping[str, str], main: str) -> str:
    """The style sheet *main* with those that it imports in their places."""

    def read(found: re.Match[str]) -> str:
        return _source(sources, found["name"])

    return _STYLES.sub(read, _source(sources, main))


def _add_module(sources: Mapping[str, str], name: str, written: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        msg = f"modules import each other in a circle: {' → '.join((*above, name))}"
        raise BundleError(msg)
    text = _source(sources, name)
    for found in _IMPORT.finditer(text):
        if f"{found['name']}.js" not in written:
            _add_module(sources, f"{found['name']}.js", written, (*above, name))
    exports = ", ".join(_EXPORT.findall(text))
    body = _EXPORT.sub("", _IMPORT.sub(_constants, text))
    other = _OTHER.search(body)
    if other is not None:
        msg = f"{name}: {other[0]!r} is an import or export that the bundle does not support"
        raise BundleError(msg)
    written[name] = f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _constants(found: re.Match[str]) -> str:
    """An import, as constants."""
    names = found["all"] or "{" + _RENAMED.sub(r"\1: \2", found["names"]) + "}"
    return f"const {names} = {_variable(found['name'] + '.js')};"


def _variable(name: str) -> str:
    return f"${name.removesuffix('.js')}"


def _source(sources: Mapping[str, str], name: str) -> str:
    if name not in sources:
        msg = f"there is no {name}"
        raise BundleError(msg)
    return sources[name]
