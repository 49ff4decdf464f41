"""The gateway: ordinary MQTT clients in front, an MQTT 5 broker behind, purposes between.

Start reading at `service/gateway` (the whole), `connection/downstream` (the way of a
publication) and `connection/upstream` (the way of a delivery).
"""
