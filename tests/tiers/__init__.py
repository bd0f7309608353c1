"""Programs as graphs, and compiled, in real processes."""
