"""The program that restricts itself and then becomes another: for processes that are started by libraries, not by us.

    python -I -S confine_main.py POLICY COMMAND [ARGUMENT ...]

The policy is a JSON object, as `Sandbox.command()` writes it. Our own tools start their processes in a restricted
thread instead (`landlock.py`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from halter.toolbox.sandbox import landlock, namespaces_main
from halter.toolbox.sandbox.policy import without_hidden


def main() -> None:
    request, *argv = sys.argv[1:]
    policy = json.loads(request)
    place = os.getcwd()  # noqa: PTH109
    has_namespaces, has_terminals = policy["namespaces"], True
    if has_namespaces:
        has_terminals = namespaces_main.enter(policy)
        os.chdir(place)  # the folder that was opened before would show what is hidden now
    hidden = set() if has_namespaces else {Path(each) for each in policy["hidden"]}
    writable = [Path(each) for each in policy["writable"] + (policy["terminals"] if has_terminals else [])]
    ruleset = landlock.Ruleset(
        [*without_hidden(hidden), *writable],
        writable,
        tcp=not policy["ports"] if policy["network"] else has_namespaces,
        ports=policy["ports"],
    )
    ruleset.restrict_this_thread(keep_capabilities=has_namespaces)
    ruleset.close()
    os.execvp(argv[0], argv)  # noqa: S606


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"the sandbox cannot start {sys.argv[2:3]}: {error}")
