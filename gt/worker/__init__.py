"""The process that holds shards and computes: store, executor, engines."""
