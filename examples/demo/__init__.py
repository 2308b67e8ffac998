"""A governed agent, killed in the middle of what it must not do twice. Run `make demo`."""
