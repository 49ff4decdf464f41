"""One module for each section of penstock.yaml; `penstock.config.root` lists them."""
