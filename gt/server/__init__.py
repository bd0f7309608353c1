"""Starting a server: by hand (`gt serve`), or a private one for the process that needs it."""

from gt.server.local import PrivateServer, start_private

__all__ = ["PrivateServer", "start_private"]
