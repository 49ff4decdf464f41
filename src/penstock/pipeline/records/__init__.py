"""Records of streams as columns: decoded, parsed, checked against the fields of the stream."""
