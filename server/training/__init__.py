"""The training service: datasets, studies that tune models over them, and the jobs that run the studies.

    hyperspace → advisors → study (the master) → trials on workers → checkpoints → selection

The study side is pure: what happens next is a function of the trials so far, which lie in Optuna's storage.
"""
