"""The API does what its OpenAPI document says: statuses, types of content, schemas, authorisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounded
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from tests.site_client import Opened, body, opened

# Parts of these types may be of any bytes, so that what is no zip is tried, too.
schemathesis.serializer.alias(["application/zip", "application/gzip"], "application/octet-stream")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    # which schemathesis calls it; without limits, since how many calls a minute holds is the machine's affair
    made = opened(
        tmp_path_factory.mktemp("schema"), base_url="http://testserver", requests_per_minute=0, publish_per_hour=0,
        comparisons_per_minute=0,
    )  # fmt: skip
    made.site.throttle._limits["failed"] = None  # it tries wrong tokens over and over
    yield made
    made.close()


@pytest.fixture(scope="module")
def described(site: Opened) -> Any:
    # what no schema tells may still be wrong with it (422): the cells' statuses, secrets, who one is
    told = {
        "positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", 401, 403, 404, 409, 410, 422]},
        "negative_data_rejection": {"expected-statuses": [400, 401, 403, 404, 405, 406, 409, 410, 413, 414, 415, 422]},
    }
    # NUL is in no text; that an address with one is refused (400) stands in test_site_hostile
    made = {"with-security-parameters": False, "allow-x00": False}
    config = SchemathesisConfig.from_dict({"checks": told, "generation": made})
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", site.app, config=config)


@pytest.fixture(scope="module")
def token(site: Opened) -> dict[str, str]:
    headers = site.token("ann", ["publish", "moderate"])
    for number in range(2):
        site.publish(body(number), headers)
    return headers


def everywhere(described: Any, mode: GenerationMode, examples: int, ask: Any) -> int:
    """Calls `ask` with cases of every operation; how many operations there are."""
    count = 0
    for found in described.get_all_operations():
        operation = found.ok()
        count += 1

        @bounded(max_examples=examples, deadline=None, derandomize=True, database=None,
                 phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            ask(case)

        try:
            check()
        except Unsatisfiable:  # nothing of this operation can be made wrong
            assert mode is GenerationMode.NEGATIVE
    return count


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
def test_every_answer_is_described(described: Any, token: dict[str, str], mode: GenerationMode) -> None:
    assert everywhere(described, mode, 20, lambda case: case.call_and_validate(headers=dict(token))) >= 19


def test_answers_about_what_is_there_are_described(described: Any, token: dict[str, str], site: Opened) -> None:
    """Random ids are of nothing: here they are of runs."""
    runs = [site.publish(body(number), token).json()["id"] for number in range(10, 14)]
    seen: set[tuple[str, int]] = set()

    def ask(case: schemathesis.Case) -> None:
        if case.method == "DELETE" or (case.method == "POST" and case.path == "/api/v1/runs"):
            return
        if "run_id" in case.path_parameters:
            case.path_parameters["run_id"] = runs[0] if case.path.endswith("withdraw") else runs[1]
        if "board" in case.path_parameters:
            case.path_parameters["board"] = "single:8192"
        if "r" in case.query:
            case.query["r"] = runs[2:]
        for name in ("q", "m", "h", "e", "p", "s", "c", "from", "to", "after", "run"):
            case.query.pop(name, None)
        seen.add((case.path, case.call_and_validate(headers=dict(token)).status_code))

    everywhere(described, GenerationMode.POSITIVE, 5, ask)
    answered = {path for path, status in seen if status < 300}
    missing = {"/api/v1/runs/{run_id}/samples", "/api/v1/reports/{report_id}/settle"}  # there are none
    assert len(answered) >= 14 and {path for path, _ in seen} - answered <= missing


def test_nothing_is_written_without_a_token(described: Any, token: dict[str, str], site: Opened) -> None:
    before = site.http.get("/api/v1/me", headers=token).json()["runs"]

    def ask(case: schemathesis.Case) -> None:
        case.headers.pop("Authorization", None)
        answer = case.call_and_validate()
        if case.operation.definition.raw.get("security") == [{"token": []}]:
            assert answer.status_code == 401, answer.text

    everywhere(described, GenerationMode.POSITIVE, 6, ask)
    assert site.http.get("/api/v1/me", headers=token).json()["runs"] == before > 0
