"""Ways to tell a service of a request, one module each."""
