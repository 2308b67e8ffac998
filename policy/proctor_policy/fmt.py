"""Cedar files in one layout, policy by policy: formatting a whole set takes Cedar minutes."""

import cedarpy

from proctor_policy.lexer import split


def formatted(text: str) -> str:
    """Return `text` with each policy laid out as Cedar's own formatter does.

    What stands between policies, comments above all, stays as it is.

    Raises:
        lexer.Unreadable: the text is not a sequence of policies.
        ValueError: Cedar does not take a policy, or its formatter changed what it means.
    """
    done = []
    at = 0
    for fragment in split(text):
        start = fragment.tokens[0].start
        done.append(text[at:start])
        done.append(_one(fragment.text))
        at = start + len(fragment.text)
    return "".join([*done, text[at:].rstrip(), "\n"])


def _one(policy: str) -> str:
    laid_out = str(cedarpy.format_policies(policy)).rstrip()
    if _meaning(laid_out) != _meaning(policy):
        raise ValueError("Cedar's formatter would change what a policy means")
    return laid_out


def _meaning(policy: str) -> list[str]:
    """Return the words of a policy without its layout and comments."""
    return [token.text for fragment in split(policy) for token in fragment.tokens]
