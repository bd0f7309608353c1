"""What the client records: the tree, the pending program, values, the graph of gradients."""
