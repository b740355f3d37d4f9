"""What the tests of the deployment are given: `halter` as a program, as in the tests of the command line."""

from __future__ import annotations

from tests.cli.conftest import home, provider

__all__ = ["home", "provider"]
