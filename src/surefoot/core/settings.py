"""Every setting of a run, with its default and what it is for.

The core takes its numbers from here; `surefoot.config` layers files and keywords over the defaults
and journals the outcome as `configured`, so that a fold needs nothing from outside.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Frozen; a change is a `configured` event."""

    seed: int | None = None
    """All randomness of ours derives from it; None takes what the script had seeded torch with."""
    steps: int | None = None
    """What `run.steps(n)` was asked for; None where a framework owns the loop."""
    stage_every_steps: int = 10
    """A memory snapshot every so many steps: what a crash of the workers costs."""
    slots: int = 3
    """Memory snapshots held per rank: 2 to 4. With two, staging rests while a write runs."""
    save_every_s: float = 300.0
    """A durable checkpoint at least this often: what the loss of the machine costs."""
    save_every_steps: int | None = None
    """A durable checkpoint every so many steps, as well."""
    keep: int = 3
    """Newest durable checkpoints that stay, beside pinned, suspect and good ones; -1 keeps all."""
    probation_steps: int = 100
    """Steps without an alarm after which a snapshot counts as good."""
    restore_tries_max: int = 2
    """Attempts that may die while loading one snapshot before it is suspect."""
    first_step_twice: bool | None = None
    """Do an attempt's first step, rewind, do it again: DDP on three or more ranks is bit-exact only
    so (its buckets are regrouped after the first backward). None does it where that holds."""
    agree_deadline_s: float = 600.0
    """How long a rank waits at a boundary for the others before it names who did not come."""
    own_boundary_s: float = 1.0
    """Above this step time the agreed vector is read at its own boundary, not a turn later."""
    exit_save_s: float = 600.0
    """How long a run that ends waits for its last save."""
    linger_s: float = 60.0
    """How long an agent beside outlives its ranks, so that the next attempt finds its memory."""
    lease_s: float = 4.0
    """How long a holder's counter must stand still before another may take the run."""
