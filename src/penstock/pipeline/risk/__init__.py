"""The risk of re-identification of a view, measured on its published records."""
