"""Running operators: windows, aggregates, joins and negation, kept up row by row."""
