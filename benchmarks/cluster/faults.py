"""Faults beside the kill of a raylet: of the controller, a gateway, the head, and of the network."""

from __future__ import annotations

import asyncio
import signal
import time

from benchmarks.cluster.scenes import BACK_SECONDS, Facts, Setting

SPLIT_SECONDS = 30.0
AWAY_SECONDS = 5.0
HEAD_SECONDS = 120.0


async def controller(at: Setting) -> Facts:
    """The controller's process is killed, and the directory's with it; when gateways are told again, and by whom."""
    before = {each["number"]: each["process_id"] for each in (await asyncio.to_thread(at.ray.status))["replicas"]}
    lists, killed = len(at.members.lists), time.perf_counter()
    at.ray.kill_actor("Controller")
    told = await at.members.next_list(lists) - killed
    after = await asyncio.to_thread(at.ray.status)
    kept = {each["number"]: each["process_id"] for each in after["replicas"]}
    return {
        "seconds_until_the_directory_tells": round(told, 2),
        "seconds_until_status_answers": round(time.perf_counter() - killed, 2),
        "replicas_kept": before == kept,
    }


async def gateway(at: Setting) -> Facts:
    """A gateway is killed, and started again a little later; requests of the others are not to notice."""
    killed = time.perf_counter()
    at.gateways.processes[0].signal(signal.SIGKILL)
    await asyncio.sleep(AWAY_SECONDS)
    at.gateways.again(0)
    await asyncio.to_thread(at.gateways.wait)  # the scene after this one is to find it there, however slow the machine
    serves, served = time.perf_counter(), list[float]()
    while not served and time.perf_counter() < serves + BACK_SECONDS:
        await asyncio.sleep(0.5)
        own = [each for each in at.traffic.outcomes if each.gateway == 0]
        served = [each.ended for each in own if not each.failure and each.begun > killed]
    at.traffic.outcomes = [each for each in at.traffic.outcomes if not (each.gateway == 0 and each.failure)]
    return {
        "failed_requests_of_the_killed_gateway": sum(bool(each.failure) for each in own),
        "seconds_until_it_answers": round(min(served) - killed, 2) if served else None,
    }


async def split(at: Setting) -> Facts:
    """Nothing passes between one gateway, which has a network of its own, and one replica, for a while."""
    victim = next(each for each in (await asyncio.to_thread(at.ray.status))["replicas"] if each["state"] == "ready")
    with at.gateways.cut(victim["address"]):
        began = time.perf_counter()
        await asyncio.sleep(SPLIT_SECONDS)
    await asyncio.sleep(SPLIT_SECONDS / 3)
    pauses: tuple[list[float], list[float]] = ([], [])
    for each in at.traffic.outcomes:
        if not each.failure and each.ended > began:
            pauses[each.gateway != 0].append(each.gap)
    return {"longest_gap_s_of_the_gateway_that_is_cut_off": round(max(pauses[0], default=0.0), 3),
            "longest_gap_s_of_others": round(max(pauses[1], default=0.0), 3)}  # fmt: skip


async def head(at: Setting) -> Facts:
    """Ray's head is killed: for how long requests go on. Nothing comes back by itself; hence the last scene."""
    killed = time.perf_counter()
    at.ray.kill_head()
    while time.perf_counter() < killed + HEAD_SECONDS:
        await asyncio.sleep(0.5)
        if any(each.failure for each in at.traffic.outcomes):
            break
    answered = [each.ended for each in at.traffic.outcomes if not each.failure]
    return {"seconds_until_the_last_answer": round(max(answered, default=killed) - killed, 1)}
