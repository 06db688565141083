"""The suites on a GPU of CUDA: made where there is time, run where there is a GPU."""
