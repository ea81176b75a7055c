"""The actor that keeps so many replicas of one model, and tells gateways of them. Pinned to Ray's head node."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any, Final

from launcher.cluster.autoscaler import Scaling
from launcher.cluster.directory_thread import DirectoryThread
from launcher.cluster.fleet import Fleet, Go, Record, Start, State, Stop
from launcher.cluster.load_watch import LoadWatch
from launcher.cluster.ray_session import nodes, own_place, recall, remember
from launcher.cluster.replica import Place, Started
from launcher.cluster.replica_actors import Event, Gone, Placed, Prepared, ReplicaActors, Serves, Tells
from launcher.cluster.replica_spec import ReplicaSpec
from launcher.cluster.status import ClusterStatus, ReplicaStatus
from slipstream.directory.member import Member
from slipstream.rpc.logs import set_up_logging

_log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 1.0
"""From one look at nodes with room to the next."""
RESTORE_SECONDS: Final = 30.0
"""For how long a controller that has come back publishes nothing while replicas of the former one have not answered."""
MEMORY: Final = "fleet"


class Controller:
    """Its methods are called by drivers; a thread of its own does the work, and goes on whatever they do.

    What is wanted is remembered by Ray's head, and replicas are actors that outlive this one: a controller that Ray has
    started again takes them over as they are.
    """

    def __init__(self, name: str, port: int, spec: ReplicaSpec) -> None:
        set_up_logging("controller", "info", "text")
        self._name = name
        self._lock = threading.Lock()
        tls = spec.tls_files
        self._tls = None if tls is None else tls.read()
        self._remembered = recall(name, MEMORY)
        self._directory = DirectoryThread(own_place()[1], self._remembered.get("port", port), self._tls)
        self._actors = ReplicaActors(name)
        self._watch = LoadWatch()
        self._places: dict[int, Place] = {}
        self._started: dict[int, Started] = {}
        self._progress: dict[int, str] = {}
        self._fleet = _fleet(self._remembered)
        self._told = 0
        self._look_at = 0.0
        self._restoring: set[int] = set()
        self._restore_by = time.monotonic() + RESTORE_SECONDS
        asked, standing = self._remembered.get("asked", ()), self._remembered.get("standing", ())
        for number, generation in self._actors.find(standing):
            state = State.STANDBY if number in standing else State.STARTING
            self._fleet.records[number] = Record(number, generation, time.monotonic(), state, asked=number in asked)
            if state is State.STARTING:
                self._restoring.add(number)
        threading.Thread(target=self._run, name="fleet", daemon=True).start()

    def apply(self, spec: ReplicaSpec, scaling: Scaling) -> None:
        """Want replicas of this spec. ValueError if another model's controller was meant."""
        with self._lock:
            self._fleet.apply(spec, scaling)
            self._keep()

    def rescale(self, scaling: Scaling) -> None:
        """Want so many."""
        with self._lock:
            self._fleet.rescale(scaling)
            self._keep()

    def scaling(self) -> Scaling:
        """As it is."""
        return self._fleet.scaling

    def release(self, number: int) -> bool:
        """Drain a replica, and have another take its place; whether there is such a one."""
        with self._lock:
            if number not in self._fleet.records:
                return False
            self._fleet.release(number)
            self._keep()
            return True

    def clear(self, node: str) -> str:
        """Drain all replicas of the node whose id begins so, and have none come there; its whole id, or nothing."""
        found = [each.node for each in nodes(set()) if each.node.startswith(node)]
        if len(found) != 1:
            return ""
        with self._lock:
            self._fleet.clear(found[0])
            self._keep()
        return found[0]

    def close(self, seconds: float) -> None:
        """Drain all replicas, and have them end."""
        with self._lock:
            self._fleet.close(seconds)

    def status(self) -> ClusterStatus:
        """All that there is to tell."""
        with self._lock:
            fleet, now = self._fleet, time.monotonic()
            scaling = fleet.scaling
            return ClusterStatus(
                name=self._name,
                directory=self._directory.address,
                directory_error=self._directory.error,
                generation=fleet.generation,
                wanted=fleet.wanted,
                least=scaling.least,
                most=scaling.most,
                settled=fleet.settled and not self._restoring,
                closing=fleet.closing is not None,
                failures=fleet.failures.count,
                reason=fleet.failures.reason,
                notes=tuple(fleet.notes),
                nodes=nodes(fleet.off),
                replicas=tuple(self._replica(each, now) for each in fleet.records.values()),
            )

    def _run(self) -> None:
        while True:
            try:
                for event in self._actors.events(TICK_SECONDS):
                    with self._lock:
                        self._take(event)
                with self._lock:
                    self._turn(time.monotonic())
            except Exception:  # noqa: BLE001  # tried again: without this thread nothing is replaced any more
                _log.exception("a turn of the controller failed")
                time.sleep(1.0)

    def _take(self, event: Event) -> None:
        fleet, number = self._fleet, event.number
        match event:
            case Placed(place=place):
                self._places[number] = place
                fleet.placed(number, place.node)
            case Prepared():
                fleet.prepared(number)
            case Serves(started=started):
                self._started[number] = started
            case Tells(line=line):
                self._progress[number] = line
            case Gone(reason=reason):
                for kept in (self._places, self._started, self._progress):
                    kept.pop(number, None)
                self._restoring.discard(number)
                fleet.ended(number, reason, time.monotonic())
                _log.info("replica %d is gone%s", number, f": {reason}" if reason else "")

    def _turn(self, now: float) -> None:
        fleet = self._fleet
        self._watch.follow({number: each.address for number, each in self._started.items()}, self._tls)
        self._watch.look(now)
        for number, started in self._started.items():
            record, facts = fleet.records[number], self._watch.facts(number)
            if record.state is State.STARTING and facts is not None:
                fleet.ready(number, started.address, facts.bits, now)
                self._restoring.discard(number)
                _log.info("replica %d serves at %s", number, started.address)
            elif (load := self._watch.load(number)) is not None:
                fleet.loaded(number, load)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            fleet.room = self._room()
        for action in fleet.decide(now):
            match action:
                case Start(number=number, generation=generation):
                    self._actors.start(action, fleet.specs[generation])
                    _log.info("replica %d of generation %d %s", number, generation,
                              "is to stand by" if action.standby else "starts")  # fmt: skip
                case Go(number=number):
                    self._actors.go(number)
                    _log.info("replica %d, which stood by, starts", number)
                case Stop(number=number):
                    self._actors.stop(number, placed=number in self._places)
                    _log.info("replica %d is stopped", number)
        for record in fleet.records.values():
            if record.state is State.STARTING and record.number in self._places:
                self._actors.ask_progress(record.number)
        self._publish(now)
        self._keep()

    def _room(self) -> frozenset[str]:
        """Nodes with CPUs and GPUs for one more replica of the wanted kind, as far as this cluster uses them."""
        spec = self._fleet.specs.get(self._fleet.generation)
        if spec is None:
            return frozenset()
        used = Counter(each.node for each in self._fleet.records.values())
        return frozenset(
            each.node
            for each in nodes(self._fleet.off)
            if not each.off
            and each.cpus >= spec.cpus * (used[each.node] + 1)
            and each.gpus >= spec.gpus * (used[each.node] + 1)
        )

    def _publish(self, now: float) -> None:
        if self._restoring and now < self._restore_by:
            return
        self._restoring.clear()
        members = [
            Member(each.address, self._model(each.number), each.number, each.state is not State.READY)
            for each in self._fleet.records.values()
            if each.state not in {State.STANDBY, State.STARTING} and each.address
        ]
        self._directory.publish(members)

    def _keep(self) -> None:
        """Remember what is wanted, where that has changed."""
        fleet = self._fleet
        wanted = {
            "port": self._directory.port,
            "scaling": fleet.scaling.to_json(),
            "generation": fleet.generation,
            "newest": fleet.newest,
            "specs": {str(number): spec.to_json() for number, spec in fleet.specs.items()},
            "wanted": fleet.wanted,
            "next_number": fleet.next_number,
            "off": sorted(fleet.off),
            "asked": [each.number for each in fleet.records.values() if each.asked],
            "standing": [each.number for each in fleet.records.values() if each.state is State.STANDBY],
        }
        if wanted != self._remembered:
            remember(self._name, MEMORY, wanted)
            self._remembered = wanted

    def _model(self, number: int) -> str:
        facts = self._watch.facts(number)
        return "" if facts is None else facts.model

    def _replica(self, record: Record, now: float) -> ReplicaStatus:
        number = record.number
        place, started = self._places.get(number), self._started.get(number)
        return ReplicaStatus(
            number=number,
            generation=record.generation,
            state=record.state.value,
            seconds=now - record.since,
            leaving=record.asked or record.generation != self._fleet.generation,
            node=record.node,
            address=record.address,
            metrics="" if started is None else started.metrics,
            process_id=0 if place is None else place.process_id,
            gpus=() if place is None else place.gpus,
            model=self._model(number),
            build=" ".join(record.bits[1:4]),
            progress=self._progress.get(number, "") if record.state is State.STARTING else "",
            load=self._watch.status(number),
        )


def _fleet(remembered: dict[str, Any]) -> Fleet:
    """As a former controller has left it; an empty one where there was none."""
    if not remembered:
        return Fleet(Scaling())
    return Fleet(
        scaling=Scaling.from_json(remembered["scaling"]),
        generation=remembered["generation"],
        newest=remembered["newest"],
        specs={int(number): ReplicaSpec.from_json(each) for number, each in remembered["specs"].items()},
        wanted=remembered["wanted"],
        next_number=remembered["next_number"],
        off=set(remembered["off"]),
    )
