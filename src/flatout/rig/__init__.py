"""The rig: a server of exactly known speed, and the log of what it really sent.

It shares no code with the rooms that measure, so that agreement between its log and their figures means something.
"""

from flatout.rig.config import RigConfig
from flatout.rig.handle import RigHandle, running
from flatout.rig.truth import Truth

__all__ = ["RigConfig", "RigHandle", "Truth", "running"]
