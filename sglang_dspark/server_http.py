"""Asking a running SGLang server something over HTTP, and what is said where that fails."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any


class ServerError(RuntimeError):
    """The server cannot be asked; the message says why and what to do."""


def request(url: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
    """The JSON answer to a POST of `body`, or to a GET without one.

    Raises:
        ServerError: no connection, an HTTP error, or an answer that is not JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    # A proxy set in the environment must not see requests to this very machine.
    own = urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))
    try:
        with opener.open(asked, timeout=timeout_s) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url} answered HTTP {error.code}: {error.read(2000).decode(errors='replace')}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(
            f"asked {url}, got no answer ({reason}): is the server up, and is this its address and port?"
        ) from error
    except ValueError as error:
        raise ServerError(f"asked {url} for JSON, found something else: is that an SGLang server?") from error
