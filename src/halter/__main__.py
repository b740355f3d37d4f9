"""The command line: ``halter``, or ``python -m halter``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    try:
        from halter.cli.main import run

        return run(argv)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
