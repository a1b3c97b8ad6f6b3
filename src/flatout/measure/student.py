"""Student's t without scipy: the distribution function and its inverse."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300


def beta_inc(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) for a, b > 0 and 0 <= x <= 1; absolute error below 1e-12.

    Continued fraction DLMF 8.17.22, evaluated by Lentz's method; I_x(a, b) = 1 - I_{1-x}(b, a) where it converges
    faster.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_inc(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    f, c, d = 1.0, 1.0, 0.0
    for i in range(1, 2000):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _away_from_zero(1.0 + term * d)
        c = _away_from_zero(1.0 + term / c)
        f *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return f


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) for df > 0 degrees of freedom (Abramowitz and Stegun 26.7.1 with 26.5.27)."""
    tail = 0.5 * beta_inc(df / 2.0, 0.5, df / (df + t * t))
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, 0 < p < 1, df > 0; relative error below 1e-9. Raises ValueError outside of that.

    Bisection on `t_cdf` from a bracket around the normal quantile.
    """
    if not 0.0 < p < 1.0 or df <= 0:
        raise ValueError(f"no t quantile for p={p}, df={df}")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    if p == 0.5:
        return 0.0
    low, high = 0.0, max(1.0, NormalDist().inv_cdf(p))
    while t_cdf(high, df) < p:
        low, high = high, high * 2.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
