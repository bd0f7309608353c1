"""Recording: ops become part of a thread's pending program."""
