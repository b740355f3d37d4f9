"""`halter cluster`: the nodes, the sessions that they have, and the NATS servers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from halter.cli.cluster_store import open_cluster
from halter.cli.output import print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.errors import StoreError
from halter.views.text import single_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from halter.cli.settings import Configuration
    from halter.stores import NATSStore

__all__ = ["show_cluster"]

_MAX_SESSIONS: Final = 100  # in the list


def show_cluster(options: argparse.Namespace) -> int:
    """Print the state of the cluster. Returns the exit code."""
    try:
        configuration = load(flags_of(options))
        with open_cluster(configuration.settings, _servers(configuration), patience=2.0) as store:
            found = _read(store)
    except (ImportError, OSError, SettingsError, StoreError) as error:
        return print_error(error)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for line in _lines(found):
            print(single_line(line))
    return 0


def _servers(configuration: Configuration) -> str:
    """The servers of the settings, or the one that `halter serve --workers` has started."""
    named = configuration.settings.cluster
    if not named:
        try:
            named = (configuration.paths.data / "nats" / "address").read_text()
        except FileNotFoundError:
            msg = "there is no cluster: name its NATS servers with --cluster, or start `halter serve --workers N`"
            raise SettingsError(msg) from None
    return named


def _read(store: NATSStore) -> dict[str, Any]:
    """Nodes, sessions and servers, as JSON has them."""
    nodes, owners, state = store.nodes(), store.owners(), store.state()
    infos = {info.id: info for info in store.sessions()}
    cluster = state.get("cluster", {})
    return {
        "nodes": [
            {
                "node": node,
                "host": about.get("host", ""),
                "pid": about.get("pid", 0),
                "renewed": about.get("time", 0.0),
                "sessions": sum(owner.node == node for owner in owners.values()),
            }
            for node, about in sorted(nodes.items())
        ],
        "sessions": [
            {
                "session": session,
                "node": owner.node,
                "alive": owner.node in nodes,
                "generation": owner.generation,
                "events": infos[session].events if session in infos else 0,
                "waiting": infos[session].waiting if session in infos else 0,
            }
            for session, owner in sorted(owners.items())
        ],
        "stored": len(infos),
        "lease_seconds": store.lease_seconds,
        "servers": [
            {"server": cluster["leader"], "leads": True, "current": True, "lag": 0},
            *(
                {"server": each["name"], "leads": False, "current": each["current"], "lag": each.get("lag", 0)}
                for each in cluster.get("replicas", ())
            ),
        ]
        if cluster.get("leader")
        else [],
        "messages": state["state"]["messages"],
        "bytes": state["state"]["bytes"],
    }


def _lines(found: Mapping[str, Any]) -> list[str]:
    now = time.time()
    nodes, sessions = found["nodes"], found["sessions"]
    lines = [f"{len(nodes)} nodes; a lease lasts {found['lease_seconds']:g} s"]
    lines += [
        f"  {each['node']}  {each['host']}, process {each['pid']}  {each['sessions']} sessions  "
        f"renewed {max(0.0, now - each['renewed']):.1f} s ago"
        for each in nodes
    ]
    lines.append(f"{len(sessions)} of {found['stored']} sessions are open")
    lines += [
        f"  {each['session']}  {each['node']}{'' if each['alive'] else ' (gone)'}  generation {each['generation']}  "
        f"{each['events']} events  {each['waiting']} waiting"
        for each in sessions[:_MAX_SESSIONS]
    ]
    if len(sessions) > _MAX_SESSIONS:
        lines.append(f"  … and {len(sessions) - _MAX_SESSIONS} more; --json lists all")
    lines.append(f"{found['messages']:,} messages, {found['bytes'] / 1e6:.1f} MB in the log")
    lines += [
        f"  server {each['server']}  {'leads' if each['leads'] else 'follows'}  "
        f"{'current' if each['current'] else 'behind'}, lag {each['lag']}"
        for each in found["servers"]
    ]
    return lines
