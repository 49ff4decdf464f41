"""SDKs for publishers and subscribers; needs nothing else of Penstock."""
