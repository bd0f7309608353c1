"""What makes code written for torch and numpy run: arguments, autocast, devices, interop."""
