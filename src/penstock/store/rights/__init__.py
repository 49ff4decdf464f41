"""Privacy requests on record: requests, their progress at each service, and people's choices."""
