"""Pure tensor functions: each returns sums or per-token values, never means over a batch."""
