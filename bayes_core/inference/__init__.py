"""The client's update: the paper's box, plain local training, optimisers."""
