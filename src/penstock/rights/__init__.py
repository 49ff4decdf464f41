"""Privacy controls at work: requests are taken in, every service is told, and followed up.

publisher ──▶ broker ──▶ store: request, progress, profile, consent ──▶ worker ──▶ services
                                         ▲                                            │
                                         └──── acknowledge, complete ◀────────────────┘
"""
