"""The ops: one file per family, one record per op."""
