"""The embedded engine: a federation of processes on this machine, without SuperLink, Ray or ports.

    command ── server: the ServerApp with a grid of its own
                 ├── nursery: a copy of the server before it began, which forks workers and does nothing else
                 │     ├── worker: the ClientApp, for one client after the other
                 │     └── worker …

Each process dies with the one above it, however that ends. The ServerApp and the ClientApp are those of every other
federation and cannot tell the difference.
"""
