"""The hardware's limit: what bounds each cell, and how much of it was reached. Works from records alone."""

from flatout.limits.cells import (
    Above,
    CellReach,
    LimitReport,
    Point,
    Settings,
    above,
    limits_for,
    limits_of,
    limits_of_page,
    points_of_page,
    points_of_record,
    settings_of,
    speeds_above,
)
from flatout.limits.hardware import HardwareLimits, LimitsHardwareError, by_hand, hardware, hardware_of, known
from flatout.limits.read import model_shape
from flatout.limits.roofline import CellLimit, distinct_experts, limit
from flatout.limits.shape import ModelShape, ShapeError

__all__ = [
    "Above", "CellLimit", "CellReach", "HardwareLimits", "LimitReport", "LimitsHardwareError", "ModelShape", "Point",
    "Settings", "ShapeError", "above", "by_hand", "distinct_experts", "hardware", "hardware_of", "known", "limit",
    "limits_for", "limits_of", "limits_of_page", "model_shape", "points_of_page", "points_of_record", "settings_of",
    "speeds_above",
]  # fmt: skip
