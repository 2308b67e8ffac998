"""The kernel as clients see it over HTTP: the SDK's `ClientPort` on the protocol's routes."""

import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from proctor.errors import ProctorError
from proctor.http_connection import HttpConnection
from proctor.wire.calls import WireError
from proctor.wire.json_text import parsed
from proctor.wire.messages import (
    Approval,
    Event,
    Execution,
    ExecutionPage,
    ForkPoints,
    PolicyStatus,
    Step,
)
from proctor.wire.words import APPROVALS_PAGE_MAX, ApprovalStatus, ErrorCode

_PAST_EVERY_EVENT: Final = str(2**31 - 1)

M = TypeVar("M", bound=BaseModel)


class HttpClientPort:
    """A server's runs and approvals (protocol 1.2, 1.4)."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout_seconds: float,
        retry_seconds: float,
    ) -> None:
        self._has_key = bool(api_key)
        self._server = HttpConnection(
            base_url, api_key, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._server.aclose()

    async def create_execution(
        self,
        agent_id: str,
        *,
        input_json: str,
        session: str | None = None,
        parent_execution_id: str | None = None,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Execution:
        """Start a run. Without an idempotency key one is drawn, so that it can be sent again."""
        body = _object(
            {
                "agent_id": agent_id,
                "session": session,
                "parent_execution_id": parent_execution_id,
                "idempotency_key": idempotency_key or uuid.uuid4().hex,
                "on_behalf_of": on_behalf_of,
            },
            input=input_json,
        )
        answer = await self._server.post(_path("executions"), body, is_repeatable=True)
        return _model(Execution, answer)

    async def get_execution(self, execution_id: str) -> Execution:
        """Read one run as it stands."""
        return _model(Execution, await self._server.get(_path("executions", execution_id)))

    async def list_executions(
        self, *, agent_id: str, session: str, status: str, cursor: str, limit: int
    ) -> ExecutionPage:
        """Read a page of runs."""
        given = {"agent_id": agent_id, "session": session, "status": status, "cursor": cursor}
        narrowed = {name: value for name, value in given.items() if value}
        answer = await self._server.get(_path("executions"), {**narrowed, "limit": limit})
        return _model(ExecutionPage, answer)

    async def wait_execution(self, execution_id: str) -> Execution:
        """Return the run once it is terminal, across restarts of the server."""
        frames = self._server.frames(
            _path("executions", execution_id, "watch"),
            resume_parameter="after_seq",
            resume_from=_PAST_EVERY_EVENT,
        )
        async with aclosing(frames):
            async for frame in frames:
                if frame is not None and frame.event == "end":
                    return _model(Execution, parsed(frame.data))
        raise AssertionError("unreachable: a stream is followed until it is left")

    async def list_events(
        self, execution_id: str, *, after_seq: int, limit: int
    ) -> Sequence[Event]:
        """Read a page of a run's log."""
        path = _path("executions", execution_id, "events")
        answer = await self._server.get(path, {"after_seq": after_seq, "limit": limit})
        return _models(Event, answer)

    async def watch_execution(
        self, execution_id: str, *, after_seq: int
    ) -> AsyncGenerator[Event, None]:
        """Follow a run's log to its end, across restarts of the server."""
        frames = self._server.frames(
            _path("executions", execution_id, "watch"),
            resume_parameter="after_seq",
            resume_from=str(after_seq),
        )
        async with aclosing(frames):
            async for frame in frames:
                if frame is None:
                    continue
                if frame.event == "end":
                    return
                yield _model(Event, parsed(frame.data))

    async def list_steps(self, execution_id: str) -> Sequence[Step]:
        """Read every step of a run, in the order in which they were first proposed."""
        path = _path("executions", execution_id, "steps")
        return _models(Step, await self._server.get(path, {"order": "proposed"}))

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step."""
        path = _path("executions", execution_id, "steps", step_id)
        return _model(Step, await self._server.get(path))

    async def previous_state(self, execution_id: str) -> Any:
        """Read what the run before this one left for it."""
        answer = await self._server.get(_path("executions", execution_id, "previous"))
        return answer.get("state") if isinstance(answer, dict) else None

    async def fork_execution(
        self, execution_id: str, *, at_seq: int, session: str | None, policy_bundle: str | None
    ) -> Execution:
        """Start a run as a copy of this one up to an event."""
        given = {"at_seq": at_seq, "session": session, "policy_bundle": policy_bundle}
        path = _path("executions", execution_id, "fork")
        return _model(Execution, await self._server.post(path, _object(given), is_repeatable=False))

    async def fork_points(self, execution_id: str) -> ForkPoints:
        """Read where a run can be forked."""
        path = _path("executions", execution_id, "fork-points")
        return _model(ForkPoints, await self._server.get(path))

    async def cancel_execution(self, execution_id: str) -> None:
        """End the run."""
        path = _path("executions", execution_id, "cancel")
        await self._server.post(path, is_repeatable=False)

    async def policy_status(self) -> PolicyStatus:
        """Tell which rules decide."""
        return _model(PolicyStatus, await self._server.get(_path("policy")))

    async def list_approvals(self, *, status: str, after: str) -> Sequence[Approval]:
        """Read a page of approvals."""
        params = {"status": status} | ({"after": after} if after else {})
        return _models(Approval, await self._server.get(_path("approvals"), params))

    async def watch_approvals(self) -> AsyncGenerator[Approval, None]:
        """Give what is pending, then what changes; after a break, what is pending once more."""
        frames = self._server.frames(_path("approvals", "stream"))
        async with aclosing(frames):
            async for frame in frames:
                if frame is not None:
                    yield _model(Approval, parsed(frame.data))
                    continue
                after = ""
                while True:
                    page = await self.list_approvals(status=ApprovalStatus.PENDING, after=after)
                    for approval in page:
                        yield approval
                    if len(page) < APPROVALS_PAGE_MAX:
                        break
                    after = page[-1].id

    async def get_approval(self, approval_id: str) -> Approval:
        """Read one approval."""
        return _model(Approval, await self._server.get(_path("approvals", approval_id)))

    async def grant_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Agree to a call that waits."""
        await self._decide(approval_id, "grant", by, groups, rationale)

    async def deny_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Say no to a call that waits."""
        await self._decide(approval_id, "deny", by, groups, rationale)

    async def _decide(
        self, approval_id: str, verb: str, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        # The server would leave it out of account, and the record would name somebody else.
        if groups or (by and self._has_key):
            raise WireError(
                ErrorCode.VALIDATION_ERROR,
                "a server takes who decides, and their groups, from the API key or token; leave "
                "out by= and groups=",
            )
        body = _object({"decided_by": by or None, "rationale": rationale})
        await self._server.post(_path("approvals", approval_id, verb), body, is_repeatable=False)


def _path(*segments: str) -> str:
    return "/v0/" + "/".join(quote(segment, safe="") for segment in segments)


def _object(members: Mapping[str, object], **documents: str) -> str:
    """Return a JSON object of the members that are set, and of documents as they are."""
    written = {name: json.dumps(value) for name, value in members.items() if value is not None}
    written |= documents
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in written.items()) + "}"


def _model(of: type[M], answer: Any) -> M:
    try:
        return of.model_validate(answer)
    except ValidationError as error:
        raise ProctorError(
            f"the server's answer is not an {of.__name__} that this version of proctor knows; "
            f"is the server newer? {error}"
        ) from error


def _models(of: type[M], answer: Any) -> list[M]:
    return [_model(of, each) for each in answer or ()]
