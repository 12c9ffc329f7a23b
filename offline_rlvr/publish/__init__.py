"""A run for others: model card, hub repository, cost, and its evaluations in other tools' formats.

Reads run folders and pools; changes neither.
"""
