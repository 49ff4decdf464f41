"""Sets of definitions: reading documents, checking them as a whole, comparing them."""
