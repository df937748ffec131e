"""Tables as they come: cells become typed columns, and these, as all sites have agreed, a network's inputs."""
