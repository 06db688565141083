"""An einsum of yours against numpy, opt_einsum, torch, JAX and TBLIS."""
