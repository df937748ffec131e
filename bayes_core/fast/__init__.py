"""The same arithmetic, faster: mirrored pairs, workspaces, and C where there is a compiler."""
