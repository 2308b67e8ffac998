"""What both ends share: `words` (enums, plain Python) and `messages` (what travels).

Kept empty on purpose: the kernel's pure core imports `words` and nothing else.
"""
