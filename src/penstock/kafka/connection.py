"""How clients reach the cluster: the event log knows, which uses it as well."""

from penstock.eventlog.connection import (
    SEPARATOR,
    admin_settings,
    client_settings,
    consumer_settings,
    owned_name,
    producer_settings,
    read_password,
    require_bootstrap,
)

__all__ = [
    "SEPARATOR",
    "admin_settings",
    "client_settings",
    "consumer_settings",
    "owned_name",
    "producer_settings",
    "read_password",
    "require_bootstrap",
]
