"""How fast emergencies are detected, and access in them is decided."""
