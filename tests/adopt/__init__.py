"""Models and scripts that were written for torch, on GT. `python -m tests.adopt` compares many public models."""
