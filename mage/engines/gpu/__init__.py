"""The device loop of the local engine: steps one ahead of the host, with Triton kernels."""
