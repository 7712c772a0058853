"""The Pareto front of points."""

from collections.abc import Iterable


def pareto(points: Iterable[tuple[float, float]], lower_x: bool) -> list[tuple[float, float]]:
    """Return the points that no other point dominates, by ascending x. Higher y is better; `lower_x`: lower x is better."""
    sign = 1.0 if lower_x else -1.0
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (sign * point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return sorted(front)
