"""The gateway: ordinary MQTT clients in front, an MQTT 5 broker behind, purposes between.

Start reading at `gateway` (the whole), `downstream` (the way of a publication) and
`upstream` (the way of a delivery).
"""
