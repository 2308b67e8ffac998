"""The kernel over HTTP: one router a caller, one table of errors (protocol section 1)."""
