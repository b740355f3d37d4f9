"""Ctrl+C at every point at which Python may run a signal handler: it raises there, in whatever is being done."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


@functools.cache
def _offsets(code: CodeType) -> frozenset[int]:
    """Where Python looks for signals: at the start of a function, behind a call, and when a loop goes back."""
    found: set[int] = set()
    is_behind = False
    for instruction in dis.get_instructions(code):
        if is_behind:
            found.add(instruction.offset)
        is_behind = instruction.opname.startswith(("CALL", "RESUME"))
        if instruction.opname.startswith("JUMP_BACKWARD"):
            found.add(instruction.offset)
    return frozenset(found)


class CtrlC:
    """Raises KeyboardInterrupt, or does something else, at the n-th such point in some files, in this thread."""

    def __init__(self, nth: int, *files: str, do: Callable[[], object] | None = None) -> None:
        self.left = nth
        self.where = ""
        self._files = files
        self._do = do

    def run(self, work: Callable[[], object]) -> bool:
        """Run *work* until the interrupt comes; False if it was done before that."""
        before = sys.gettrace()
        sys.settrace(self._on_event)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return bool(self.where)

    def _on_event(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            # 3.12 reports the instructions of a new frame only after this, and 3.13 only with lines.
            sys.settrace(self._on_event)
        if event == "opcode" and frame.f_lasti in _offsets(frame.f_code):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)
                if self._do is None:
                    raise KeyboardInterrupt
                self._do()
        return self._on_event
