"""`monitor`: where metrics and health can be asked for."""

from __future__ import annotations

from penstock.config.settings import Host, Port, Settings, setting


class MonitorSettings(Settings):
    """Where `penstock up` answers /metrics, /healthz and /readyz."""

    enabled: bool = setting(default=True, description="Whether it listens at all.")
    host: Host = setting("127.0.0.1", "The address it listens on.")
    port: Port = setting(9464, "The port it listens on; 0 takes a free one.")
