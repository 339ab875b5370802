"""What one agent saw through the SDK, in the form that the driver compares (see ../drive.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic

KEY = "sk-test-forkpoint@clients"


class Transcript:
    """Steps in the order the agent took them, and every HTTP response that came, retried ones included."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.responses: list[dict[str, Any]] = []

    def sync_client(self, url: str, **options: Any) -> anthropic.Anthropic:
        def hook(response: Any) -> None:
            self._response(response)

        http = anthropic.DefaultHttpxClient(event_hooks={"response": [hook]})
        return anthropic.Anthropic(api_key=KEY, base_url=url, http_client=http, **options)

    def async_client(self, url: str, **options: Any) -> anthropic.AsyncAnthropic:
        async def hook(response: Any) -> None:
            self._response(response)

        http = anthropic.DefaultAsyncHttpxClient(event_hooks={"response": [hook]})
        return anthropic.AsyncAnthropic(api_key=KEY, base_url=url, http_client=http, **options)

    def message(self, message: Any) -> Any:
        """Notes a message and hands it on."""
        fields = {"message": message.to_dict(mode="json")}
        if (request_id := getattr(message, "_request_id", None)) is not None:
            fields["request_id"] = request_id
        self._step("message", **fields)
        return message

    def event(self, event: Any) -> None:
        self._step("event", event=event.to_dict(mode="json"))

    def value(self, name: str, value: Any) -> None:
        self._step("value", name=name, value=value)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Notes what the body raises; a body that does not raise leaves no step, which the driver misses."""
        try:
            yield
        except Exception as error:
            self._step(
                "error",
                **{"class": type(error).__name__},
                bases=[
                    base.__name__ for base in type(error).__mro__ if base.__module__.startswith("anthropic")
                ],
                cause=type(error.__cause__).__name__ if error.__cause__ else None,
                status=getattr(error, "status_code", None),
                type=getattr(error, "type", None),
                api_message=getattr(error, "api_message", None),
                request_id=getattr(error, "request_id", None),
                body=getattr(error, "body", None),
                message=str(error),
            )

    def json(self) -> dict[str, Any]:
        return {"steps": self.steps, "responses": self.responses}

    def _step(self, kind: str, **fields: Any) -> None:
        self.steps.append({"step": kind, **fields})

    def _response(self, response: Any) -> None:
        self.responses.append({"status": response.status_code, "headers": response.headers.multi_items()})
