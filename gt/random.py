"""The names of torch.random: seeds and states of the random number generator."""

from gt.client.functions.randoms import fork_rng, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
