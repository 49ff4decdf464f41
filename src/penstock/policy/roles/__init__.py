"""Roles with parameters: how they are activated, watched and revoked. Pure."""
