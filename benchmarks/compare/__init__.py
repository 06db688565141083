"""Compare the time of one einsum with numpy, opt_einsum, torch, JAX and TBLIS."""
