"""What runs at the coordinator: the Flower ServerApp, the run folder, the report."""
