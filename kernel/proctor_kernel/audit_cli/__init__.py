"""`proctor audit ...`: what happened, and the proof of it."""

from proctor_kernel.audit_cli.app import audit_app

__all__ = ["audit_app"]
