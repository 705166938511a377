"""Runs compact networks fast: C kernels and what lays networks out for them."""
