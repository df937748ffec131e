"""The server's arithmetic: sums and extrapolation, clustering, sparsity."""
