"""REST: the operations as resources, described by OpenAPI at /openapi.json."""
