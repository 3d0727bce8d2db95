"""Expected speed of a memory plan on an H200, from utilisation measured there."""

from mage.training.memory_plan import MemoryPlan

_PEAK_OPERATIONS = 989e12  # bfloat16 operations per second
# Parameters, and the share of the peak that an update with recompute reaches.
_UTILISATION = ((135e6, 0.10), (360e6, 0.18), (1.7e9, 0.33), (4e9, 0.34))
_READ_SPEED = 3.0e12  # bytes per second while decoding, measured at 4 B
_WEIGHT_OPERATIONS = 6  # per weight and token: 2 forward, 4 backward


def learned_tokens(plan: MemoryPlan) -> float:
    """Computed tokens per second of learning."""
    shape = plan.shape
    operations = _WEIGHT_OPERATIONS * (shape.parameters - shape.embedding_weights)
    speed = _utilisation(shape.parameters) * _PEAK_OPERATIONS / operations
    # Recompute adds a second forward pass: 8 operations instead of 6.
    return speed if plan.recompute else speed * 4 / 3


def played_tokens(plan: MemoryPlan) -> float:
    """Generated tokens per second of play, with a quarter of the context."""
    read = plan.fixed.weights + plan.slots * plan.fixed.bytes_per_slot / 4
    return plan.slots / (read / _READ_SPEED)


def _utilisation(parameters: float) -> float:
    """Measured utilisation at the nearest model size."""
    return min(_UTILISATION, key=lambda point: abs(point[0] - parameters))[1]
