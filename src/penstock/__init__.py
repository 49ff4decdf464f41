"""Penstock controls the flow of personal data through publish/subscribe systems.

This module imports nothing, so that a service that only needs `penstock.client`
pays for nothing else.
"""

__version__ = "0.1.0"
