"""gt.distributions beside torch's."""
