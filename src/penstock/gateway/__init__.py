"""The MQTT gateway: sockets and enforcement."""
