"""What to buy and whether to split: a decision from four replayed cells, and what would change it.

``decide`` makes it, ``flips`` looks for what changes it, ``report`` tells it, ``command`` runs.
"""
