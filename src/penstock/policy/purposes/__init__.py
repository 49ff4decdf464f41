"""Purpose limitation: reservations, subscriptions with a purpose, and commands in topics.

Nothing here knows of policies or emergencies; the authorizer puts both together.
"""
