"""The solver: recorded steps, prices, plans."""
