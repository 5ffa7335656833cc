"""The one number that data and losses share."""

IGNORE = -100
"""The label of a token that is not to be learnt (the default `ignore_index` of torch's cross entropy)."""
