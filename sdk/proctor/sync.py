"""The client for scripts and notebooks: `proctor.sync.Client`, which blocks instead of awaiting.

with proctor.sync.Client() as client:
    run = client.create("researcher", {"question": "cedar"})
    print(client.wait(run.id).output)
"""

from types import TracebackType
from typing import Self

from proctor.background import BackgroundLoop, Blocking, blocking, iterating
from proctor.client import Client as AsyncClient

__all__ = ["Client"]


class Client(Blocking[AsyncClient]):
    """What `proctor.Client` is, method by method; what that awaits, this waits for.

    It works where an event loop is running already: it has one of its own, in a thread. One
    client may be used from several threads.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 60.0,
    ) -> None:
        """Be a client of a server; see `proctor.Client`."""
        made = AsyncClient(base_url, api_key, timeout=timeout, retry_for=retry_for)
        super().__init__(made, BackgroundLoop(made.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server, and end the thread. Twice is as good as once."""
        self._loop.close()

    create = blocking(AsyncClient.create)
    get = blocking(AsyncClient.get)
    list_executions = iterating(AsyncClient.list_executions)
    wait = blocking(AsyncClient.wait)
    events = blocking(AsyncClient.events)
    watch = iterating(AsyncClient.watch)
    list_steps = blocking(AsyncClient.list_steps)
    get_step = blocking(AsyncClient.get_step)
    previous = blocking(AsyncClient.previous)
    fork = blocking(AsyncClient.fork)
    fork_points = blocking(AsyncClient.fork_points)
    cancel = blocking(AsyncClient.cancel)
    policy_status = blocking(AsyncClient.policy_status)
    list_approvals = blocking(AsyncClient.list_approvals)
    watch_approvals = iterating(AsyncClient.watch_approvals)
    get_approval = blocking(AsyncClient.get_approval)
    grant_approval = blocking(AsyncClient.grant_approval)
    deny_approval = blocking(AsyncClient.deny_approval)
