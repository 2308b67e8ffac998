"""The errors that the kernel itself writes on steps, and how to recognise them (protocol 5.1)."""

import json
from typing import Final

from proctor.wire.words import Reason
from proctor_kernel.core.identity import Json, quoted

INDETERMINATE: Final = Json(
    '{"reason":"indeterminate","message":"outcome unknown: this may already have taken effect.'
    ' Check the state before continuing."}'
)
"""On an `at_most_once` step that was under way when its attempt died."""

RETRY_REFUSED_RULE: Final = "__indeterminate_retry"
RETRY_REFUSED_REASON: Final = "prior attempt outcome unknown; retry refused"


def ended(reason: Reason) -> Json:
    """Return the error of a step whose run ended for `reason` while its body was under way."""
    return Json(f'{{"reason":{quoted(reason)}}}')


def denied(reason: str, rule_id: str) -> Json:
    """Return the error of a denied step as the protocol shows it."""
    return Json(f'{{"reason":{quoted(reason)},"rule_id":{quoted(rule_id)}}}')


def is_indeterminate(error: Json) -> bool:
    """True when nobody knows whether the body took effect, whoever said so."""
    # The text is searched first: parsing every large error would cost more than it tells.
    if Reason.INDETERMINATE not in error:
        return False
    value = json.loads(error)
    return isinstance(value, dict) and value.get("reason") == Reason.INDETERMINATE
