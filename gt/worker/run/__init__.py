"""What runs programs on a worker: lowering, generated code, tiers, compiling, the store."""
