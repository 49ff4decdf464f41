"""The gateway: ordinary MQTT clients in front, an MQTT 5 broker behind, purposes between.

Rooms, each of which imports only what stands below it:

    service        process, listeners, definition feed; composes all others
    connection     one client: downstream, upstream, session, subscriptions
    commands | publishing | recording
    authorization  rules in force, decisions, denials
    detection      engine host, journal, reload, leader election
    replication    situations from the leader to its followers

Start reading at `connection.downstream` (a publication), `connection.upstream` (a delivery) and
`service.gateway` (the whole).
"""
