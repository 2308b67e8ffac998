"""The kernel: runs, steps, storage and delivery."""
