"""One file per algorithm: its configuration, what its loss is, and its trainer."""
