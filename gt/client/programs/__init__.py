"""Programs as the client knows them: the tree of all that was recorded, the one that is pending, gradients."""
