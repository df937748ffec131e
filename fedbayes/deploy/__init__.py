"""Real federations: keys, coordinator, sites."""
