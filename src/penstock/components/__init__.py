"""The programs Penstock stands on: where they are, how to get them, how to start them."""
