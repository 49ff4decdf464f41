"""A view as a function on DataFrames: a batch or a stream in, the view's records out."""
