"""What a group is told when it joins: whether the script still fits the run, and what to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_64_hexdigest

from surefoot.agent.memory import Memory
from surefoot.agent.start import Start
from surefoot.core import changes
from surefoot.core.orders import HOST
from surefoot.core.recovery import Candidate
from surefoot.core.state import RunState
from surefoot.errors import ChangedSettings, ConfigError
from surefoot.journal.shapes import to_json

Message = dict[str, Any]
Change = dict[str, Any]


def new_settings(state: RunState, hello: Message) -> dict[str, list[Any]]:
    """Return the settings that a script changes, as `configured` lists them.

    The seed and the number of steps are no settings to be taken over in silence: they are compared,
    and declared by the loop.
    """
    was = to_json(state.settings)
    return {
        key: [value, hello["origins"].get(key, "default")]
        for key, value in hello["settings"].items()
        if value != was[key] and key not in ("seed", "steps")
    }


def settle(
    start: Start, state: RunState, hellos: Sequence[Message]
) -> tuple[list[Change], dict[str, list[Any]]]:
    """Compare what the ranks declare with the run's record: the differences, and what is declared now.

    Raises ConfigError if the ranks read different data, ChangedSettings for a difference that is
    impossible, or needs a person's yes and has none.
    """
    hello = hellos[0]
    prints = [message["data"]["fingerprint"] for message in hellos]
    if len(set(prints)) > 1:
        raise ConfigError(
            f"{start.run_dir}: the ranks read different data: {', '.join(prints)}. Expected the same dataset "
            "on all, of which each rank gets its part; don't split it beforehand"
        )
    declared = {**hello["declared"], **_of_data(hello["data"]), "seed": hello["settings"]["seed"]}
    if hello["data"]["unit"] == "batch":
        # Places count batches then: of another size in another world.
        declared["data.world_size"] = len(hellos)
    if not state.commits:
        return [], {key: [value, "script"] for key, value in declared.items()}
    changed = changes.compare({**state.declared, "seed": state.settings.seed}, declared)
    refused = changes.refused(changed, {*state.accepted, *hello["accept"]})
    if refused:
        keys = " ".join(
            f"--accept-change {change['key']}" for change in refused if change["kind"] == changes.MATHS
        )
        advice = f"If that is meant: surefoot set {start.run_dir} {keys}, then start again. " if keys else ""
        raise ChangedSettings(
            f"{start.run_dir}: the script differs from the run it would resume (attempt "
            f"{state.attempt.number}, step {state.step:,}):\n{changes.describe(changed)}\n"
            f"Nothing was trained. {advice}Start over: --fresh."
        )
    gone = {key: None for key in state.declared if key not in declared}
    settings = {key: [value, "script"] for key, value in {**gone, **declared}.items()} if changed else {}
    return changed, settings


def layout_hash(hellos: Sequence[Message]) -> str:
    """Return 16 hex digits over what the script made on every rank, before anything was restored."""
    return xxh3_64_hexdigest("".join(hello["made"] for hello in hellos).encode())


def code_changes(state: RunState, code: dict[str, Any]) -> list[Change]:
    """Return how the script differs from the last attempt's: on record, never refused."""
    before = state.joined.code if state.joined is not None else {}
    return [
        {"key": f"code.{key}", "was": before[key], "now": code.get(key), "kind": changes.HARMLESS}
        for key in ("script", "hash", "git")
        if before.get(key) is not None and before[key] != code.get(key)
    ]


def welcomes(
    start: Start, state: RunState, memory: Memory, candidates: Sequence[Candidate], branch: int, world_size: int
) -> tuple[list[Message], list[int]]:
    """Return each rank's welcome, and the descriptors that go with every one of them."""
    fds: list[int] = []
    restore: list[Message] = []
    for candidate in candidates:
        entry: Message = {
            **to_json(candidate.id),
            "tier": candidate.tier,
            "lineage": candidate.lineage,
            "fds": [],
        }
        if candidate.tier == HOST:
            own = memory.descriptors(candidate.id)
            entry["fds"] = list(range(len(fds), len(fds) + len(own)))
            fds += own
        else:
            entry["name"] = start.names[candidate.id]
        entry["at_ns"] = start.written_ns.get(candidate.id)
        restore.append(entry)
    changed = state.joined.changed if state.joined is not None else ()
    message = {
        "kind": "welcome",
        "attempt": state.attempt.number,
        "branch": branch,
        "order": state.attempt.order,
        "passed_over": start.passed_over,
        "progressed": state.commits > 0,
        "round_trip": state.attempt.number == 1 or any(change["key"] == "code.hash" for change in changed),
        "changed": list(changed),
        "accepted": {change["key"]: change["now"] for change in changed if change["kind"] == changes.MATHS},
        "settings": to_json(state.settings),
        "knobs": state.knobs,
        "skips": state.skips,
        "offset_ns": start.clock.offset_ns,
        "finished": state.finished,
        "known": 0,
    }

    def of_rank(rank: int) -> Message:
        held = [
            {**entry, "held": [to_json(box) for box in memory.held(candidate.id)[rank]]}
            if entry["fds"]
            else entry
            for entry, candidate in zip(restore, candidates, strict=True)
        ]
        return {**message, "restore": held}

    return [of_rank(rank) for rank in range(world_size)], fds


def _of_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return what must not change about the data in silence."""
    return {f"data.{key}": data[key] for key in ("kind", "unit", "length", "fingerprint", "batch_size")}
