"""Looking inside GT: what is recorded, what the workers do. `import gt.debug` works too."""

from gt.client.debug import get_client_stats, get_worker_stats, print_tape, tape

__all__ = ["get_client_stats", "get_worker_stats", "print_tape", "tape"]
