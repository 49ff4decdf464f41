"""The server does what /openapi.json describes: calls are drawn from it, right and wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth, unsupported_method

from tests.support.scale import scaled
from tests.support.server.installation import ServerInstallation

# Wrong passwords are answered after a pause, so those are tested elsewhere, and once.
EXCLUDED = [unsupported_method, ignored_auth]


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    made = ServerInstallation(
        tmp_path_factory.mktemp("openapi"), limits={"rate": 100_000, "burst": 100_000}
    )
    made.start()
    loaded = schemathesis.openapi.from_url(f"http://127.0.0.1:{made.port}/openapi.json")
    loaded.config.update(headers={"Authorization": f"Bearer {made.tokens['portal']}"})
    yield loaded
    made.kill()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_server_does_what_its_description_says(
    description: BaseSchema, mode: GenerationMode
) -> None:
    count = 0
    for found in description.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=scaled(8), deadline=None, suppress_health_check=[*HealthCheck])
        def check(case: Case[Any]) -> None:
            case.call_and_validate(excluded_checks=EXCLUDED)

        with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
            check()
        count += 1
    assert count >= 14


def test_the_description_is_public_and_tells_how_to_prove_who_calls(
    server: ServerInstallation,
) -> None:
    found = server.call("GET", "/openapi.json", user=None)
    assert found.status == 200
    assert set(found.content["components"]["securitySchemes"]) == {"token", "password"}
    assert {"/v1/requests", "/v1/signals", "/opendsr/requests"} <= set(found.content["paths"])
    for path in found.content["paths"]:
        assert "subject}" not in path.replace("subject_request_id}", "")
