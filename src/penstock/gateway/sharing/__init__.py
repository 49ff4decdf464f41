"""Detection that several gateways share: one detects, the others ask it and know what it knows."""
