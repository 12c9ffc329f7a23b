"""From response text to "equal or not".

`extract` and `literals` import nothing and run in the caller; the rest is for workers.
"""
