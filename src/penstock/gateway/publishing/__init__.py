"""What the gateway publishes: over lanes for clients, and by itself.

lanes                     messages of QoS 0 of many clients, over a few connections
own_connection            a connection of the gateway's own: a session, or none
publisher, actions, wills what actions say, and what clients leave behind
peers, domains            what gateways, and domains, tell each other through the broker
key_exchange              requests for keys of sealed streams, and the keys
"""
