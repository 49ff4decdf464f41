"""One file per step: `NNNN_name.py`, revision "NNNN", each resting on the one before.

A step that was released is never changed; a mistake is mended by a further step.
"""
