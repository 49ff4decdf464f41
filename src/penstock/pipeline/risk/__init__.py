"""How much a view tells about persons, measured on what it has published."""
