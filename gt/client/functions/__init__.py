"""The function library: what users call, one file per family."""
