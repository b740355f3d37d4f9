"""Which Python code is destructive: shell commands that need approval, and deleting whole trees.

Only literal code is recognized: `shutil.rmtree(x)`, `os.system("rm -rf x")`, `subprocess.run(["rm", "-rf", x])`.
This is a safety net, not a sandbox; code can do the same in many other ways. Code that cannot be parsed here needs
approval as well: it may run elsewhere, with more of the stack free, or on another machine with a newer Python.
"""

from __future__ import annotations

import ast
import shlex
from typing import Final

from halter.toolbox.terminal.approval.commands import danger_in

_SHELLS_OUT: Final = frozenset(
    {"system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput"}
    | {"create_subprocess_shell", "create_subprocess_exec", "execv", "execvp", "execl", "execlp", "spawnlp", "spawnvp"}
)
_DELETES: Final = {
    "rmtree": "it deletes a whole directory (rmtree)",
    "removedirs": "it deletes directories (removedirs)",
}


def danger_in_code(code: str) -> str:
    """Why this Python code needs approval; "" if nothing destructive was found."""
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return f"it cannot be checked: {error.msg}"
    except (ValueError, RecursionError, MemoryError, SystemError) as error:  # the last: a defect before CPython 3.11.8
        return f"it cannot be checked: {str(error) or type(error).__name__}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _DELETES:
                return _DELETES[name]
            if name in _SHELLS_OUT and (why := danger_in(_command_of(node))):
                return f"it runs a command: {why}"
    return ""


def _command_of(call: ast.Call) -> str:
    """The command as far as it is literal; a computed word is unknown."""
    values = [*call.args, *(each.value for each in call.keywords if each.arg in ("args", "cmd", "command"))]
    if len(values) == 1 and isinstance(values[0], (ast.Constant, ast.JoinedStr)):
        return _text_of(values[0])
    words: list[str] = []
    for value in values:
        items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
        if value is values[0] and " " in _text_of(value):
            return _text_of(value)
        words += [_text_of(item) or "?" for item in items]
    return shlex.join(words)


def _text_of(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else ""
    if isinstance(value, ast.JoinedStr):
        return "".join(_text_of(each) or "x" for each in value.values)
    return ""
