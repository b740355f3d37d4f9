"""The command line: ``halter``, or ``python -m halter``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOTE = (
    "The chat, the gateway and the other commands are not written yet; README.md says what exists and what is planned."
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="halter",
        description="The agent runtime that stops when you say stop: now, completely, and with nothing lost.",
        epilog=_NOTE,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands.add_parser("demo", help="watch one stop end a stream, threads, processes and tasks (4 s)")
    fetch = commands.add_parser("fetch-model", help="install the small model that needs no key and no network")
    fetch.add_argument("--yes", action="store_true", help="do not ask before installing")
    options = parser.parse_args(argv)
    if options.version:
        print(f"halter {_version()}")
        return 0
    if options.command == "demo":
        return _demo()
    if options.command == "fetch-model":
        return _fetch_model(is_agreed=options.yes)
    parser.print_help()
    return 0


def _demo() -> int:
    # Imported where they are used, so that `halter --help` does not pay for asyncio.
    from halter.cancel import ExitGuard  # noqa: PLC0415
    from halter.demo import run  # noqa: PLC0415

    with ExitGuard(timeout=3.0) as guard:
        sys.exit(run(guard.token))


def _fetch_model(*, is_agreed: bool) -> int:
    from halter.models.fetch import fetch_model  # noqa: PLC0415  (as above)

    return fetch_model(is_agreed=is_agreed, say=print)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (costs as much as all of halter)

    try:
        return version("halter")
    except PackageNotFoundError:
        return "(run from its source, not installed)"


if __name__ == "__main__":
    sys.exit(main())
