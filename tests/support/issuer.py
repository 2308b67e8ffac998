"""An OpenID Connect issuer on loopback: discovery, keys, and tokens."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm


class Issuer:
    """Signs tokens, and publishes the key that they are checked with."""

    kid = "key-1"

    def __init__(self, url: str) -> None:
        self.url = url
        self._key = ec.generate_private_key(ec.SECP256R1())

    def token(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self.kid})

    def documents(self) -> dict[str, Any]:
        public = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        return {
            "/.well-known/openid-configuration": {"jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "ES256"}]},
        }


@contextmanager
def issuing() -> Iterator[Issuer]:
    documents: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path)
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = Issuer(f"http://127.0.0.1:{server.server_address[1]}")
        documents.update(issuer.documents())
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield issuer
        server.shutdown()
        thread.join()
