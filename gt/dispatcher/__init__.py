"""The process that turns the programs of all clients into plans for the workers. No torch, no tensors."""
