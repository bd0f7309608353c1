"""`@gt.function`: a Python function is traced once, and replayed."""
