"""The sections of penstock.yaml, in modules by theme; `penstock.config.catalogue` lists them."""
