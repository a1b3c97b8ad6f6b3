"""flatout measured against a sender of known speed, on the machine that it will measure from.

Light by itself: `store` has what a run needs of an earlier calibration; `conduct` does a new one.
"""
