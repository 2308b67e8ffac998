"""An OTLP receiver over HTTP and gRPC that keeps what it is sent, and can be down or choosy."""

import gzip
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver:
    """Takes traces and logs; what it was sent is in `spans` and `records`."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        """Span id in hex -> the span, as it came last."""
        self.times: Counter[str] = Counter()
        """Span id -> how often it came."""
        self.records: list[Any] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        """Headers and body of every request, accepted or not."""
        self.refuses: Callable[[Any], bool] = lambda record: False
        """A request that holds such a span or record is refused as a whole."""
        self.rejects: Callable[[Any], bool] = lambda record: False
        """Such a span or record is left out of an accepted request."""
        self.status = 200
        self.url = ""
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self._grpc: Any = None
        self._connections: list[socket.socket] = []

    def start(self, port: int = 0) -> None:
        """Listen for HTTP; on the port of before, when it was stopped."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = receiver._take_http(self.path, headers, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port or self.port), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def start_grpc(self) -> int:
        """Listen for gRPC; returns the port."""
        server = grpc.server(ThreadPoolExecutor(2))
        receiver = self

        class Traces(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver._take_grpc(request, context)
                return trace_service_pb2.ExportTraceServiceResponse()

        class Logs(logs_service_pb2_grpc.LogsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                receiver._take_grpc(request, context)
                return logs_service_pb2.ExportLogsServiceResponse()

        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self._grpc = server
        return int(port)

    def stop(self) -> None:
        """Stop listening, as a backend that is down does."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()
            self._server = None
        if self._grpc is not None:
            self._grpc.stop(0).wait()
            self._grpc = None

    def trace(self, trace_id: str) -> list[Any]:
        """Return the spans of one trace, by their start."""
        found = [span for span in self.spans.values() if span.trace_id.hex() == trace_id]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.name))

    def _take_http(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        self.requests.append((headers, body))
        if self.status != 200:
            return self.status, b""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request: Any
        if path == "/v1/traces":
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        else:
            request = logs_service_pb2.ExportLogsServiceRequest.FromString(body)
        rejected = self._take(request)
        if rejected is None:
            return 400, b"a record is not to our taste"
        answer = logs_service_pb2.ExportLogsServiceResponse()
        if rejected:
            answer.partial_success.rejected_log_records = rejected
            answer.partial_success.error_message = "some are not to our taste"
        return 200, answer.SerializeToString()

    def _take_grpc(self, request: Any, context: Any) -> None:
        headers = {str(name): str(value) for name, value in context.invocation_metadata()}
        self.requests.append((headers, request.SerializeToString()))
        if self._take(request) is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a record is not to our taste")

    def _take(self, request: Any) -> int | None:
        """Keep what is in a request; returns how many records are rejected, None: all."""
        found = [
            record
            for part in getattr(request, "resource_spans", None) or request.resource_logs
            for scope in getattr(part, "scope_spans", None) or part.scope_logs
            for record in getattr(scope, "spans", None) or scope.log_records
        ]
        if any(map(self.refuses, found)):
            return None
        kept = [record for record in found if not self.rejects(record)]
        for record in kept:
            if hasattr(record, "parent_span_id"):
                self.spans[record.span_id.hex()] = record
                self.times[record.span_id.hex()] += 1
            else:
                self.records.append(record)
        return len(found) - len(kept)


def attributes_of(record: Any) -> dict[str, Any]:
    """Return the attributes of a span, event or log record as Python has them."""
    return {each.key: _value(each.value) for each in record.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
