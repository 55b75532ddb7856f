"""Training: a server's trials, an epoch at a time (`trainer`, `trial`, `learners`); or a folder of images.

    examples.read_examples → images.decode_examples → loop.train → saving.save_model

The second is `python -m gpu_worker.train`; both train networks by the same `loop`. Nothing is imported here:
a worker needs `trainer` alone, and does without torch until a model wants it.
"""
