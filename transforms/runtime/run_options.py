"""How a model is opened and run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """How a session runs: provider (``provider_name``), threads (0: the runtime chooses), optimization.

    ``simulate``: between quantizations to integers nodes compute in float32, as the model says, and not in
    kernels for integers. The runtime then leaves weights alone, too, which it would otherwise quantize itself
    where they are float32 and the rest of a layer is integers: with 16-bit inputs to something useless.
    ``prepack``: a copy of each weight is put in order for the kernels when the model is opened, which pays
    where there are dozens of runs. ``blocked``: convolutions may compute on blocks of channels; tensors
    between them that are looked at are then brought into their own layout late, and live long. ``spin``:
    threads without work look for some in a loop, which is fast where each has a core of its own. ``arena``:
    memory stays for the next tensor and the next run, and doubles whenever it does not do. ``guarded``:
    optimizers are left out that compute something else or end the process; users' own sessions have them.
    ``full_inputs``: no input of a product with stored integers is rounded to 8 bits
    (:mod:`transforms.deploy.rounded_inputs`).
    """

    provider: str = "CPU"
    threads: int = 0
    optimize: bool = True
    simulate: bool = False
    prepack: bool = True
    blocked: bool = True
    spin: bool = True
    arena: bool = True
    guarded: bool = True
    full_inputs: bool = False
