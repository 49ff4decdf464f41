"""Event types: the attributes that messages have by the streams they feed, and filters on them."""
