"""penstock.yaml: typed settings, environment overrides, secrets from files."""
