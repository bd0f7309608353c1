"""GT beside torch's own operator database: every sample, forward and gradient."""
