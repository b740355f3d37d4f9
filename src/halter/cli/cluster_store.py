"""The store of a cluster, as the settings describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.cli.settings_values import SettingsError

if TYPE_CHECKING:
    from halter.cli.settings import Settings
    from halter.stores import NATSStore

__all__ = ["open_cluster"]


def open_cluster(settings: Settings, servers: str, **options: Any) -> NATSStore:  # noqa: ANN401  (of `NATSStore`)
    """Connect to the NATS *servers*, addresses separated by commas. Raises `SettingsError` or `StoreError`."""
    from halter.stores import NATSStore

    if settings.cluster_ca:
        from ssl import create_default_context

        try:
            options["tls"] = create_default_context(cafile=settings.cluster_ca)
        except OSError as error:
            msg = f"cluster_ca: {settings.cluster_ca!r} is not a usable certificate file: {error}"
            raise SettingsError(msg) from error
    return NATSStore(
        [each.strip() for each in servers.split(",")],
        replicas=settings.cluster_replicas,
        lease_seconds=settings.lease_seconds,
        **options,
    )
