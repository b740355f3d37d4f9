"""A node of a cluster as a program of its own, to be killed or suspended: `python -m tests.support.node_program`.

Arguments: the servers, the prefix, the seconds of a lease, the patience of a drain, the number of replicas, and the
address of a provider, if it is to be asked. SIGUSR1 puts its clock forward by an hour, and SIGUSR2 back.
"""

from __future__ import annotations

import signal
import sys
import time

from halter import Agent
from halter.gateway import Gateway, GatewayLimits, Keys
from halter.gateway.serve import serve
from halter.models import OpenAIModel
from halter.stores import NATSStore
from tests.support.gateway_client import OWN
from tests.support.gateway_program import Talking

_HOUR = 3_600.0
_real_time = time.time
_ahead = 0.0  # seconds by which the clock of this process is wrong


def _step_clock(number: int, _frame: object) -> None:
    global _ahead  # noqa: PLW0603  (a process has one clock)
    _ahead += _HOUR if number == signal.SIGUSR1 else -_HOUR


def main() -> None:
    time.time = lambda: _real_time() + _ahead
    for each in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, _step_clock)
    servers, prefix, lease_seconds, patience, replicas, provider = sys.argv[1:7]
    model = OpenAIModel("test", base_url=provider, api_key="any") if provider else Talking()
    limits = GatewayLimits(session_messages=10_000, key_messages=1_000_000, key_sessions=1_000_000)
    with NATSStore(
        servers.split(","), prefix=prefix, lease_seconds=float(lease_seconds), replicas=int(replicas)
    ) as store:
        serve(
            lambda: Gateway(Agent(model), store, Keys(own=OWN), limits=limits),
            drain_timeout=float(patience),
            exit_timeout=10.0,  # for a busy machine
            on_start=lambda gateway: print(gateway.url, flush=True),
        )


if __name__ == "__main__":
    main()
