"""Where random numbers are drawn: few of them by the generator that was given, so that a seed means
the same on every device; many on the device that uses them, since a CPU takes longer to draw and
send them than the device to compute with them.
"""

import torch

DEVICE_TYPES = {"cuda"}  # with generators of their own
MANY = 2**18  # numbers, which a CPU draws in about two milliseconds


def drawing_device(device: torch.device, count: int) -> torch.device:
    """Return where ``count`` numbers for ``device`` are drawn by a generator that a seed makes."""
    there = device.type in DEVICE_TYPES and count >= MANY
    return device if there else torch.device("cpu")


def of(generator: torch.Generator, device: torch.device, count: int) -> torch.Generator:
    """Return the generator that draws ``count`` numbers for ``device``: ``generator``, or one of
    that device which it seeds.
    """
    where = drawing_device(device, count)
    if where.type in ("cpu", generator.device.type):
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return seeded(where, seed)


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """Return a generator of that device with this seed."""
    return torch.Generator(device).manual_seed(seed)
