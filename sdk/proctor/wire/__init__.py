"""What both ends share: `words` (enums), `calls` (an agent's messages), `messages` (a client's).

Kept empty on purpose: the kernel's pure core imports `words` and `calls`, plain Python both.
"""
