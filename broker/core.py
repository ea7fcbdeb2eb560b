"""Decides what happens to every message: admission, the corridor, dispatch, streams, failure.

No socket here: `Port` puts encoded frames on the wire, time comes in as `now` (seconds, monotonic).
`router.py` feeds it; `links.py` keeps the peers.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
from typing import Protocol

from beige import wire
from beige.wire import Header, Outcome
from broker import identity
from broker.access import ISSUES_TOKENS, stations
from broker.calls import Body, Call, Peer
from broker.identity import Refusal
from broker.links import Links, Port
from broker.services import Service

MAX_CALLS_PER_PEER = 4096
MAX_UNRECORDED = 20_000
UNAVAILABLE_AFTER_S = 5.0
"""How long after the broker's start calls wait for a service that has had no worker yet: where nobody serves,
no call waits."""
RESTARTED_AFTER_S = 10.0
"""How long a service that had workers may have none before calls to it end. supervisord needs about a second,
a loaded machine five."""
MAX_ATTEMPTS = 4
MAX_RECORD_ATTEMPTS = 10


class Core(Links):
    """All state of the broker. Not thread-safe; one loop feeds it."""

    def __init__(self, port: Port, epoch: int, internal: InternalService | None = None) -> None:
        super().__init__(port, epoch)
        self.internal = internal
        self.services: dict[str, Service] = {}
        self.calls: dict[int, Call] = {}
        self.tokens: dict[str, Call] = {}
        self._ids = itertools.count(1)
        self._deadlines: list[tuple[float, int]] = []
        self._began: float | None = None

    # --- peers ---------------------------------------------------------------------------------

    def hello(self, peer: Peer, header: Header) -> None:
        if header.service and header.service != peer.role.serves:
            self.refuse(
                peer, header.id, "denied", f"role {peer.role_name!r} may not serve {header.service!r}"
            )
            return
        self.send(peer, Header(type=wire.WELCOME, epoch=self.epoch))
        if header.service:
            peer.service, peer.capacity = header.service, min(header.credit, 4096)
            self.service(header.service).workers[peer.rid] = peer
            self.pump(peer.service)

    def service(self, name: str) -> Service:
        if name not in self.services:
            self.services[name] = Service(name, self.now if self._began is None else self._began)
        return self.services[name]

    def peer_lost(self, peer: Peer) -> None:
        """Its work fails or is dispatched again, its calls are cancelled."""
        if peer.service:
            self.service(peer.service).workers.pop(peer.rid, None)
        for call in reversed(list(peer.work.values())):  # each goes to the queue's front: order is kept
            self._worker_lost(call)
        if peer.service:
            self.pump(peer.service)
        for call in list(peer.calls.values()):
            self.counters["calls_caller_gone"] += 1
            call.caller = None
            self.abort(call, "cancelled", "the caller is gone")

    # --- a call is made ------------------------------------------------------------------------

    def call(self, peer: Peer, header: Header, body: Body) -> None:
        if header.id in peer.calls:
            self.counters["refused_duplicate_id"] += 1
            self.send(peer, Header(type=wire.RESET, epoch=self.epoch))
            self.lose(peer, "duplicate_id")
            return
        try:
            settled = identity.settle(peer, header, self.tokens)
            self._check_load(peer, header.service, len(body))
        except Refusal as no:
            self.refuse(peer, header.id, no.code, no.message)
            return
        if header.service == "bus" and self.internal is not None:
            self.send(peer, *self.internal.answer(peer, header, body))
            return
        self._admit(peer, header, body, settled)

    def _check_load(self, peer: Peer, service: str, size: int) -> None:
        if len(peer.calls) >= MAX_CALLS_PER_PEER:
            raise Refusal("overloaded", f"more than {MAX_CALLS_PER_PEER} calls in flight from one peer")
        waiting = self.services.get(service)
        if waiting and waiting.queue.is_full(size):
            raise Refusal("overloaded", f"the queue of {service!r} is full")
        if len(self.calls) >= MAX_UNRECORDED:
            raise Refusal("overloaded", "too many calls wait for audit")

    def _admit(self, peer: Peer, header: Header, body: Body, settled: identity.Settled) -> None:
        number = next(self._ids)
        ttl_s = min(header.ttl_ms / 1000 or wire.DEFAULT_TTL_S, wire.MAX_TTL_S)
        call = Call(
            id=number,
            name=f"{self.epoch:08x}-{number}",
            caller=peer,
            caller_id=header.id,
            header=header,
            body=body,
            way=stations(header.service, header.method),
            deadline=self.now + ttl_s,
            parent=settled.parent,
        )
        header.id, header.parent, header.token = number, 0, ""
        header.agent, header.session, header.channel = settled.agent, settled.session, settled.channel
        header.trace = header.trace or settled.trace
        header.src, header.epoch, header.call, header.flags = peer.user, self.epoch, call.name, 0
        header.parent_call = settled.parent.name if settled.parent else ""
        call.down.grant(header.credit, header.credit_bytes)
        if settled.parent:
            settled.parent.children.add(call)
        self.calls[number] = call
        peer.calls[call.caller_id] = call
        heapq.heappush(self._deadlines, (call.deadline, number))
        self.counters["calls_accepted"] += 1
        self._enter(call)

    # --- stations ------------------------------------------------------------------------------

    def _enter(self, call: Call) -> None:
        """The call arrives at its next station and waits for a worker there."""
        call.worker, call.attempt, call.queued_since = None, 0, self.now
        self.service(call.service).queue.append(call)
        self.pump(call.service)

    def pump(self, name: str) -> None:
        """Hand waiting calls to workers with free capacity, oldest first; a call whose affinity
        points at a full worker waits without holding up the others."""
        service = self.services[name]
        queue = service.queue
        waiting: list[Call] = []
        while queue and service.has_room():
            call = queue.pop()
            worker = service.pick(call.affinity, self.now)
            if worker is not None:
                self._dispatch(call, worker)
            else:
                waiting.append(call)
        for call in reversed(waiting):
            if call.id in self.calls and call.service == name:  # a dispatch may have ended others
                queue.put_back(call)

    def _dispatch(self, call: Call, worker: Peer) -> None:
        call.worker = worker
        call.attempt += 1
        worker.work[call.id] = call
        header, hop = call.header, call.hop
        header.type, header.hop, header.attempt = wire.CALL, hop, call.attempt
        header.ttl_ms = max(1, int((call.deadline - self.now) * 1000))
        streams = hop in (wire.DIRECT, wire.EXECUTE)
        header.credit, header.credit_bytes = (call.down.items, max(0, call.down.bytes)) if streams else (0, 0)
        header.token = self._issue_token(call) if hop == wire.EXECUTE else ""
        if hop == wire.STARTED:
            call.recorded = True
        self.send(worker, header, b"" if hop == wire.FINISHED else call.body)
        header.token = ""

    def _issue_token(self, call: Call) -> str:
        """A token lives as long as its call is at the executor: a stale one names nothing."""
        if f"{call.header.service}.{call.header.method}" not in ISSUES_TOKENS:
            return ""
        call.token = secrets.token_urlsafe(24)
        self.tokens[call.token] = call
        return call.token

    # --- a station answers ---------------------------------------------------------------------

    def answer(self, peer: Peer, header: Header, body: Body) -> None:
        call = peer.work.pop(header.id, None)
        if call is None or call.worker is not peer:
            self.counters["orphan_reply"] += 1
            return
        call.worker = None
        failed = header.type == wire.ERR
        hop = call.hop
        if hop == wire.AUTHORIZE:
            self._decided(call, header, body, failed)
        elif hop == wire.STARTED:
            self._started(call, header, body, failed)
        elif hop == wire.FINISHED:
            self._finished(call, failed)
        else:
            self._executed(call, header, body, failed)
        self.pump(peer.service)

    def _decided(self, call: Call, header: Header, body: Body, failed: bool) -> None:
        call.header.verdict = header.verdict
        if failed and header.code == "denied":
            call.answer = (Header(type=wire.ERR, code="denied"), body)
        elif failed:
            code = header.code if header.code in ("malformed", "too_large") else "unavailable"
            self._end_with(call, code, f"policy did not decide: {wire.decode_error_body(bytes(body))}")
            return
        call.station += 1
        self._enter(call)

    def _started(self, call: Call, header: Header, body: Body, failed: bool) -> None:
        if failed:
            call.recorded = False
            self._end_with(
                call, "unavailable", f"audit did not record: {wire.decode_error_body(bytes(body))}"
            )
        elif call.answer is not None:
            self._release(call)
        else:
            call.header.receipt = header.receipt
            call.station += 1
            self._enter(call)

    def _executed(self, call: Call, header: Header, body: Body, failed: bool) -> None:
        outcome = header.outcome or Outcome()
        flags = header.flags & wire.EXECUTED_MAYBE
        call.answer = (Header(type=header.type, code=header.code, flags=flags, outcome=outcome), body)
        self._leave_executor(call)
        if failed and not outcome.error:
            outcome.error = f"{header.code}: {wire.decode_error_body(bytes(body))}"[:256]
        self._record_or_release(call, outcome, header.code)

    def _leave_executor(self, call: Call) -> None:
        """What hangs on the executor serving this call ends with it: its token and its children."""
        if call.token:
            self.tokens.pop(call.token, None)
            call.token = ""
        for child in list(call.children):
            self.abort(child, "cancelled", "the call that caused this one is over")

    def _record_or_release(self, call: Call, outcome: Outcome, code: str) -> None:
        if not call.governed:
            self._release(call)
            return
        call.station = len(call.way) - 1
        call.body = b""
        call.header.outcome, call.header.code = outcome, code
        self._enter(call)

    def _finished(self, call: Call, failed: bool) -> None:
        if failed:
            self.counters["unrecorded"] += 1
            call.answer = (
                Header(type=wire.ERR, code="unavailable", flags=wire.EXECUTED_MAYBE),
                wire.error_body("audit could not record the result"),
            )
        self._release(call)

    # --- a call ends ---------------------------------------------------------------------------

    def _release(self, call: Call) -> None:
        """The held answer goes to the caller, and the call is over."""
        self._tell(call)
        self._forget(call)

    def _tell(self, call: Call) -> None:
        """Answer the caller once; the call may go on to be recorded."""
        caller = call.caller
        if call.answered or call.answer is None:
            return
        call.answered = True
        if caller is None:
            return
        caller.calls.pop(call.caller_id, None)
        header, body = call.answer
        self.counters["calls_replied" if header.type == wire.REPLY else "calls_errored"] += 1
        header.id, header.epoch, header.call = call.caller_id, self.epoch, call.name
        self.send(caller, header, body)

    def _forget(self, call: Call) -> None:
        self.calls.pop(call.id, None)
        self.service(call.service).queue.discard(call)
        if call.caller is not None:
            call.caller.calls.pop(call.caller_id, None)
        if call.worker is not None:
            call.worker.work.pop(call.id, None)
            call.worker = None
        if call.parent is not None:
            call.parent.children.discard(call)
        self._leave_executor(call)

    def _end_with(self, call: Call, code: str, message: str, maybe: bool = False) -> None:
        flags = wire.EXECUTED_MAYBE if maybe else 0
        call.answer = (Header(type=wire.ERR, code=code, flags=flags), wire.error_body(message))
        self._release(call)

    def abort(self, call: Call, code: str, message: str) -> None:
        """End a call early: cancelled, out of time, its worker, caller or parent gone.

        The executor is told to stop; what audit was told had started gets its finished record."""
        if call.id not in self.calls:
            return
        if call.answer is not None:
            if code == "deadline_exceeded":
                self._answer_before_record(call, code, message)
            return
        self.service(call.service).queue.discard(call)
        maybe = call.hop in (wire.DIRECT, wire.EXECUTE) and call.attempt > 0
        worker, call.worker = call.worker, None
        if worker is not None:
            worker.work.pop(call.id, None)
            if call.hop in (wire.DIRECT, wire.EXECUTE):
                self.send(worker, Header(type=wire.CANCEL, id=call.id, epoch=self.epoch))
        flags = wire.EXECUTED_MAYBE if maybe else 0
        call.answer = (Header(type=wire.ERR, code=code, flags=flags), wire.error_body(message))
        self._leave_executor(call)
        if call.recorded:
            self._record_or_release(call, Outcome(error=f"{code}: {message}"[:256]), code)
        else:
            self._release(call)
        if worker is not None:
            self.pump(worker.service)

    def _answer_before_record(self, call: Call, code: str, message: str) -> None:
        """Audit is too slow for the caller's deadline: the caller hears so, never the result."""
        if call.answered:
            return
        if call.answer is not None and call.answer[0].code != "denied":
            call.answer = (
                Header(type=wire.ERR, code=code, flags=wire.EXECUTED_MAYBE),
                wire.error_body(message),
            )
        self._tell(call)

    def _worker_lost(self, call: Call) -> None:
        worker, call.worker = call.worker, None
        if worker is not None:
            worker.work.pop(call.id, None)
        limit = MAX_RECORD_ATTEMPTS if call.hop == wire.FINISHED else MAX_ATTEMPTS
        if call.retryable and call.attempt < limit:
            self.counters["redispatched"] += 1
            call.queued_since = self.now
            self.service(call.service).queue.put_back(call)
        elif call.hop == wire.FINISHED:
            self._finished(call, failed=True)
        elif call.hop in (wire.AUTHORIZE, wire.STARTED):
            self._end_with(call, "unavailable", f"{call.service} died {call.attempt} times over this call")
        else:
            self.abort(
                call, "peer_lost", f"{worker.user if worker else 'the worker'} died while serving the call"
            )

    # --- streams -------------------------------------------------------------------------------

    def item(self, peer: Peer, header: Header, body: Body) -> None:
        up = bool(header.flags & wire.TO_WORKER)
        call = peer.calls.get(header.id) if up else peer.work.get(header.id)
        if call is None or not call.at_executor or call.answer is not None:
            self.counters["orphan_item"] += 1
            return
        end = header.flags & wire.END
        if len(body) and not (call.up if up else call.down).take(len(body)):
            self.counters["credit_exceeded"] += 1
            self.abort(call, "failed", "a stream sent more than its receiver allowed")
            return
        if up and call.worker is not None:
            target, number = call.worker, call.id
        elif call.caller is not None:
            target, number = call.caller, call.caller_id
        else:
            return
        self.send(
            target, Header(type=wire.ITEM, id=number, flags=end | (header.flags & wire.TO_WORKER)), body
        )

    def credit(self, peer: Peer, header: Header) -> None:
        down = bool(header.flags & wire.TO_WORKER)
        call = peer.calls.get(header.id) if down else peer.work.get(header.id)
        if call is None:
            return
        grant = Header(type=wire.CREDIT, credit=header.credit, credit_bytes=header.credit_bytes)
        if down:
            call.down.grant(header.credit, header.credit_bytes)
            if call.at_executor and call.worker is not None:
                grant.id, grant.flags = call.id, wire.TO_WORKER
                self.send(call.worker, grant)
        elif call.at_executor and call.caller is not None:
            call.up.grant(header.credit, header.credit_bytes)
            grant.id = call.caller_id
            self.send(call.caller, grant)

    def cancel(self, peer: Peer, header: Header) -> None:
        call = peer.calls.get(header.id)
        if call is not None:
            self.abort(call, "cancelled", "the caller cancelled")

    def cancel_prompts(self, agent: str, session: str) -> int:
        """End the turns of a session, running or waiting, whoever made them. How many there were."""
        turns = [call for call in self.calls.values() if call.is_turn_of(agent, session)]
        for call in reversed(turns):  # those waiting first, so that none begins in between
            self.abort(call, "cancelled", "an operator cancelled the session's prompts")
        return len(turns)

    # --- time ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Deadlines, overflow, and services without workers. Called every few milliseconds."""
        self.now = now
        self._began = now if self._began is None else self._began
        while self._deadlines and self._deadlines[0][0] <= now:
            call = self.calls.get(heapq.heappop(self._deadlines)[1])
            if call is not None:
                self.abort(call, "deadline_exceeded", "the call's time is over")
        self.tend_links()
        for service in self.services.values():
            if service.workers:
                service.served_at, service.was_served = now, True
            elif service.queue and now - service.served_at >= _grace_s(service):
                self._expire(service)

    def _expire(self, service: Service) -> None:
        for call in service.queue:
            if call.id not in self.calls:
                continue
            message = f"no {service.name} process is running"
            if call.hop == wire.FINISHED:
                # An answer that is there is worth a wait of its own.
                if self.now - call.queued_since >= _grace_s(service):
                    self._answer_before_record(call, "unavailable", message)
            elif call.recorded:
                self.abort(call, "unavailable", message)
            else:  # a worker that died may have begun a direct call
                self._end_with(call, "unavailable", message, call.hop == wire.DIRECT and call.attempt > 0)


def _grace_s(service: Service) -> float:
    return RESTARTED_AFTER_S if service.was_served else UNAVAILABLE_AFTER_S


class InternalService(Protocol):
    """`bus.*`, answered by the broker itself."""

    def answer(self, peer: Peer, header: Header, body: Body) -> tuple[Header, Body]: ...
